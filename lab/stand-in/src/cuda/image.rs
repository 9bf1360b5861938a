//! Module images: what `cuModuleLoadData` is given.
//!
//! Our own format begins with the line `FKCU1`; then each line is a kernel:
//!
//! ```text
//! FKCU1
//! kernel gemm params=8,8,4 regs=32 smem=0 dur=2ms sm=78 mem=8 op=none
//! kernel gemm dur@64x1x1/256x1x1=3ms
//! kernel step params=8,8,8 dur=50us op=affine
//! global counter 8
//! ```
//!
//! | word | meaning | left out |
//! |---|---|---|
//! | `params=` | sizes of the parameters in bytes | none |
//! | `regs=`, `smem=` | registers of a thread, static shared memory in bytes | 32, 0 |
//! | `dur=` | running time: see [`DurationLaw::parse`] | 10 µs |
//! | `dur@GRID/BLOCK=` | running time of launches of exactly this grid and block | |
//! | `sm=`, `mem=` | percent of the GPU's SMs and of its bandwidth that it uses | the whole slice; 0 |
//! | `op=` | what it computes: `none`, `axpy`, `affine`, `append`, `spin_until`, `trap` | `none` |
//!
//! A kernel without `sm=` was recorded on the slice on which it runs: it fills that, and takes
//! as long as its line states. With `sm=` it is one of a whole GPU, and slower on a slice.
//!
//! Of real images (PTX text, cubins, fat binaries with uncompressed parts) only the kernels'
//! names are read.

use super::duration::{DurationError, DurationLaw, parse_time};

/// How our own images begin.
const MAGIC: &[u8] = b"FKCU1\n";

/// Largest image that is read: no test uses larger ones.
pub const BYTES_MAX: usize = 64 << 20;

/// Kernels of one image.
const KERNELS_MAX: usize = 100_000;

/// Running time of a kernel that states none, in nanoseconds.
const DEFAULT_TIME: u64 = 10_000;

/// A module's content.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelImage {
    /// Its kernels, in order.
    pub kernels: Vec<ImageKernel>,
    /// Its variables in device memory: name and size in bytes.
    pub globals: Vec<(String, u64)>,
}

/// One kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageKernel {
    /// The mangled name of the function.
    pub name: String,
    /// Sizes of its parameters in bytes, if they are known.
    pub params: Option<Vec<u32>>,
    /// Registers of a thread.
    pub registers: u32,
    /// Static shared memory, in bytes.
    pub shared_bytes: u32,
    /// Running time where nothing more exact is stated.
    pub time: DurationLaw,
    /// Running times of exact grids and blocks.
    pub exact: Vec<(LaunchShape, DurationLaw)>,
    /// Share of the GPU's SMs that it uses, in thousandths.
    pub sms: Option<u32>,
    /// Share of the GPU's bandwidth that it draws, in thousandths.
    pub bandwidth: u32,
    /// What it computes.
    pub op: KernelOperation,
}

/// A grid and a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaunchShape {
    /// Blocks by axis.
    pub grid: [u32; 3],
    /// Threads of a block by axis.
    pub block: [u32; 3],
}

/// What a kernel computes. Its parameters are 8 bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelOperation {
    /// Nothing.
    None,
    /// `(n, a, x, y)`: `y[i] += a * x[i]` over n doubles, `a` a double.
    Axpy,
    /// `(x, a, b)`: `*x = a * *x + b` modulo 2^61 − 1. It isn't commutative: a launch that is
    /// lost, doubled or out of order changes the outcome.
    Affine,
    /// `(log, value)`: appends value and stream id to a log of 64-bit words: its length in
    /// pairs, its capacity in pairs, then the pairs.
    Append,
    /// `(word, value)`: runs until the 64-bit word is at least the value.
    SpinUntil,
    /// Touches memory that isn't there.
    Trap,
}

/// Why a text is not an image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// Nothing that could be an image.
    #[error("neither FKCU1, PTX, ELF nor a fat binary")]
    Unknown,
    /// A line of an FKCU1 image.
    #[error("line {line}: {why}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong, with what would be right.
        why: LineProblem,
    },
}

/// What is wrong with a line of an FKCU1 image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineProblem {
    /// A kernel without a name.
    #[error("no name")]
    NoName,
    /// A word without `=`.
    #[error("`{0}` has no value")]
    NoValue(String),
    /// Not a whole number.
    #[error("`{0}` is not a number")]
    NoNumber(String),
    /// Not a list of sizes.
    #[error("`{0}` are not sizes")]
    NoSizes(String),
    /// Not a percentage.
    #[error("`{0}` is not a percentage from 0 to 100")]
    NoPercentage(String),
    /// Not a running time.
    #[error(transparent)]
    Duration(#[from] DurationError),
    /// Not a grid and a block.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// An unknown computation.
    #[error("`{0}` is not an op: use none, axpy, affine, append, spin_until or trap")]
    UnknownOperation(String),
    /// An unknown word of a kernel.
    #[error("`{0}` is unknown: use params, regs, smem, dur, sm, mem or op")]
    UnknownKey(String),
    /// An unknown kind of line.
    #[error("`{0}`: use kernel or global")]
    UnknownLine(String),
    /// A variable without name or size.
    #[error("write `global NAME BYTES`")]
    BadGlobal,
    /// More kernels than an image may have.
    #[error("more than {KERNELS_MAX} kernels")]
    TooManyKernels,
}

/// A text that is not a grid and a block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a grid and block: write 64x1x1/256x1x1")]
pub struct ShapeError(String);

impl KernelImage {
    /// Reads an image. `bytes` may go on after the image, up to a NUL for text.
    ///
    /// # Errors
    ///
    /// [`ImageError`] if it is not one.
    pub fn parse(bytes: &[u8]) -> Result<Self, ImageError> {
        if let Some(text) = bytes.strip_prefix(MAGIC) {
            let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
            let text = str::from_utf8(text).map_err(|_| ImageError::Unknown)?;
            return parse_lines(text);
        }
        let names = super::names::of(bytes).ok_or(ImageError::Unknown)?;
        let kernels = names.into_iter().take(KERNELS_MAX).map(|name| ImageKernel::new(&name));
        Ok(Self { kernels: kernels.collect(), globals: Vec::new() })
    }
}

impl ImageKernel {
    /// Makes a kernel of which only the name is known.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            params: None,
            registers: 32,
            shared_bytes: 0,
            time: DurationLaw::Always(DEFAULT_TIME),
            exact: Vec::new(),
            sms: None,
            bandwidth: 0,
            op: KernelOperation::None,
        }
    }

    /// Returns the law of a launch: the exact one before the general one.
    pub fn law(&self, shape: LaunchShape) -> DurationLaw {
        self.exact.iter().find(|(exact, _)| *exact == shape).map_or(self.time, |(_, law)| *law)
    }

    fn set(&mut self, word: &str) -> Result<(), LineProblem> {
        let (key, value) =
            word.split_once('=').ok_or_else(|| LineProblem::NoValue(word.to_owned()))?;
        let number = || value.parse::<u32>().map_err(|_| LineProblem::NoNumber(value.to_owned()));
        match key {
            "params" => {
                let sizes = value.split(',').filter(|size| !size.is_empty());
                let sizes = sizes.map(|size| size.parse::<u32>().ok().filter(|s| *s <= 4096));
                let sizes: Option<Vec<_>> = sizes.collect();
                self.params = Some(sizes.ok_or_else(|| LineProblem::NoSizes(value.to_owned()))?);
            }
            "regs" => self.registers = number()?,
            "smem" => self.shared_bytes = number()?,
            "dur" => self.time = DurationLaw::parse(value)?,
            "sm" => self.sms = Some(permille(value)?.max(1)),
            "mem" => self.bandwidth = permille(value)?,
            "op" => self.op = KernelOperation::parse(value)?,
            _ => {
                let shape = key.strip_prefix("dur@");
                let shape = shape.ok_or_else(|| LineProblem::UnknownKey(key.to_owned()))?;
                self.exact.push((LaunchShape::parse(shape)?, DurationLaw::parse(value)?));
            }
        }
        Ok(())
    }
}

impl LaunchShape {
    /// Reads `64x1x1/256x1x1`.
    ///
    /// # Errors
    ///
    /// [`ShapeError`].
    pub fn parse(text: &str) -> Result<Self, ShapeError> {
        let axes = |text: &str| -> Option<[u32; 3]> {
            let axes: Option<Vec<_>> = text.split('x').map(|n| n.parse().ok()).collect();
            axes?.try_into().ok()
        };
        text.split_once('/')
            .and_then(|(grid, block)| Some(Self { grid: axes(grid)?, block: axes(block)? }))
            .ok_or_else(|| ShapeError(text.to_owned()))
    }
}

impl KernelOperation {
    fn parse(text: &str) -> Result<Self, LineProblem> {
        Ok(match text {
            "none" => Self::None,
            "axpy" => Self::Axpy,
            "affine" => Self::Affine,
            "append" => Self::Append,
            "spin_until" => Self::SpinUntil,
            "trap" => Self::Trap,
            _ => return Err(LineProblem::UnknownOperation(text.to_owned())),
        })
    }
}

fn parse_lines(text: &str) -> Result<KernelImage, ImageError> {
    let mut image = KernelImage::default();
    for (index, line) in text.lines().enumerate() {
        let line_of = |why| ImageError::Line { line: index + 2, why };
        let mut words = line.split_whitespace();
        match words.next() {
            None => {}
            Some(remark) if remark.starts_with('#') => {}
            Some("kernel") => {
                let name = words.next().ok_or_else(|| line_of(LineProblem::NoName))?;
                let known = image.kernels.iter().position(|kernel| kernel.name == name);
                let place = known.unwrap_or(image.kernels.len());
                if known.is_none() {
                    let mut kernel = ImageKernel::new(name);
                    kernel.params = Some(Vec::new());
                    image.kernels.push(kernel);
                }
                if image.kernels.len() > KERNELS_MAX {
                    return Err(line_of(LineProblem::TooManyKernels));
                }
                for word in words {
                    image.kernels[place].set(word).map_err(line_of)?;
                }
            }
            Some("global") => {
                let name = words.next().map(str::to_owned);
                let bytes = words.next().and_then(|bytes| bytes.parse().ok());
                let global = name.zip(bytes);
                image.globals.push(global.ok_or_else(|| line_of(LineProblem::BadGlobal))?);
            }
            Some(other) => {
                return Err(line_of(LineProblem::UnknownLine(other.to_owned())));
            }
        }
    }
    Ok(image)
}

fn permille(text: &str) -> Result<u32, LineProblem> {
    let bad = || LineProblem::NoPercentage(text.to_owned());
    // The unit of percent is a hundredth: as parts of a second that is exact to a nanosecond.
    let parts = parse_time(&format!("{text}s")).ok_or_else(bad)?;
    let thousandths = u32::try_from(parts / 100_000_000).map_err(|_| bad())?;
    (thousandths <= 1_000).then_some(thousandths).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_lists_kernels_with_their_rules() {
        let text = b"FKCU1\n# two lines, one kernel\nkernel k params=8,8,4 dur=2ms sm=78 mem=7.5\n\
                     kernel k dur@64x1x1/256x1x1=3ms op=affine\nglobal g 16\n";
        let image = KernelImage::parse(text).unwrap();

        let [kernel] = &image.kernels[..] else { panic!("{image:?}") };
        assert_eq!((kernel.sms, kernel.bandwidth), (Some(780), 75));
        assert_eq!(kernel.params.as_deref(), Some(&[8, 8, 4][..]));
        let exact = LaunchShape { grid: [64, 1, 1], block: [256, 1, 1] };
        assert_eq!(kernel.law(exact), DurationLaw::Always(3_000_000));
        assert_eq!(
            kernel.law(LaunchShape { grid: [1; 3], ..exact }),
            DurationLaw::Always(2_000_000)
        );
        assert_eq!(image.globals, [("g".to_owned(), 16)]);
    }

    #[test]
    fn a_bad_line_is_named_with_what_would_be_right() {
        for (line, hint) in [
            ("kernel", "no name"),
            ("kernel k op=sort", "affine"),
            ("kernel k dur=5", "2ms"),
            ("kernel k mem=101", "0 to 100"),
            ("kernel k dur@1/2=1ms", "64x1x1/256x1x1"),
            ("module k", "kernel or global"),
        ] {
            let refused = KernelImage::parse(format!("FKCU1\n\n{line}\n").as_bytes()).unwrap_err();
            let message = refused.to_string();
            assert!(message.starts_with("line 3") && message.contains(hint), "{line}: {message}");
        }
        assert_eq!(KernelImage::parse(b"garbage"), Err(ImageError::Unknown));
    }
}
