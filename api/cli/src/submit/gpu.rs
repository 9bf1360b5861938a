//! Requested GPU resources: Tessera's options (`--vram`, `--profile`) and Slurm's (`--gres`,
//! `--gpus`, `--exclusive`), and the number of GPUs.

use std::str::FromStr;

use tessera_model::Bytes;
use tessera_model::gang::GANG_MEMBERS_MAX;
use tessera_model::spec::{GpuRequest, request_by_name};

/// A request for GPU resources that is not supported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}: {why}")]
pub struct BadGpuRequest {
    text: String,
    why: &'static str,
}

const COUNT: &str = "request 1 to 256 GPUs";
const FORM: &str =
    "write gpu:4 for whole GPUs, gpu:a100:4 for GPUs of one model, or gpu:1g.5gb:4 for slices";
const SEVERAL: &str = "a job has GPUs of one kind; name one model, or none";
const SHARED: &str =
    "shares of a GPU are requested by their memory: write --vram 10G, with --share mps or kernel";

/// `--profile`: a MIG profile, or a compute instance of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedGpu(pub GpuRequest);

impl FromStr for NamedGpu {
    type Err = tessera_model::spec::BadField;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        request_by_name(text).map(Self)
    }
}

/// `--vram`: an amount with its unit, or `auto`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VramOption(pub GpuRequest);

/// A text that is not an amount of GPU memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadVram {
    /// A number that may mean bytes, megabytes or gigabytes.
    #[error("{number} has no unit: write {number}M for megabytes or {number}G for gigabytes")]
    NoUnit {
        /// The given value.
        number: String,
    },
    /// Anything else.
    #[error("{0}; or auto")]
    NotAnAmount(#[from] tessera_model::units::BadBytes),
}

impl FromStr for VramOption {
    type Err = BadVram;

    fn from_str(text: &str) -> Result<Self, BadVram> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self(GpuRequest::Unknown));
        }
        let bytes: Bytes = text.parse()?;
        if text.ends_with(|last: char| last.is_ascii_digit()) {
            return Err(BadVram::NoUnit { number: text.trim().to_owned() });
        }
        Ok(Self(GpuRequest::Memory(bytes)))
    }
}

/// `--gpus`, `--gpus-per-node`, `--gpus-per-task`: `4`, `a100:4`, `1g.5gb:4` or `1g.5gb`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpusOption {
    /// What it requests.
    pub counted: CountedGpus,
    /// The option as its user wrote it, which Slurm hands on to the job.
    pub text: String,
}

/// How many GPUs or slices, and of what kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountedGpus {
    /// How many; 0 if the option requests none.
    pub count: u32,
    /// The size, if one is named; whole GPUs, unless another option gives the size.
    pub kind: Option<GpuRequest>,
    /// The model of the GPU, if one is named, such as `a100`.
    pub model: Option<String>,
    /// Other resources of the same option, which are not counted.
    pub uncounted: Vec<String>,
}

impl CountedGpus {
    /// Returns the resources of one of them, as far as this determines it: several without a kind may be
    /// slices that another option describes.
    pub fn request(&self) -> Option<GpuRequest> {
        match (&self.kind, self.count) {
            (Some(kind), _) => Some(kind.clone()),
            (None, 1) => Some(GpuRequest::Whole),
            (None, _) => None,
        }
    }
}

impl FromStr for GpusOption {
    type Err = BadGpuRequest;

    fn from_str(text: &str) -> Result<Self, BadGpuRequest> {
        if text.contains(',') {
            return Err(BadGpuRequest { text: text.to_owned(), why: SEVERAL });
        }
        Ok(Self { counted: count_and_kind(text, text)?, text: text.to_owned() })
    }
}

/// `--gres`: `gpu`, `gpu:4`, `gpu:a100:4` or `gpu:1g.5gb:4` on each node, with other resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GresOption(pub CountedGpus);

impl FromStr for GresOption {
    type Err = BadGpuRequest;

    fn from_str(text: &str) -> Result<Self, BadGpuRequest> {
        let bad = |why| BadGpuRequest { text: text.to_owned(), why };
        let (mut gpus, mut uncounted) = (None, Vec::new());
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let word = word.strip_prefix("gres/").or(word.strip_prefix("gres:")).unwrap_or(word);
            let (name, rest) = word.split_at(word.find([':', '=']).unwrap_or(word.len()));
            match name {
                "gpu" => {
                    let counted = match rest {
                        "" => CountedGpus { count: 1, ..CountedGpus::default() },
                        rest => count_and_kind(text, &rest[1..])?,
                    };
                    if gpus.replace(counted).is_some() {
                        return Err(bad(SEVERAL));
                    }
                }
                "none" => {}
                "gpus" => return Err(bad(FORM)),
                "shard" | "mps" => return Err(bad(SHARED)),
                _ => uncounted.push(name.to_owned()),
            }
        }
        let gpus = gpus.unwrap_or_default();
        Ok(Self(CountedGpus { uncounted, ..gpus }))
    }
}

/// Reads `4`, `kind` or `kind:4`, where a kind is a GPU model, a MIG profile, or both (`h100_1g.10gb`).
///
/// A bare count means whole GPUs, unless another option gives the size: a script that was written
/// for them may need all of them.
fn count_and_kind(text: &str, rest: &str) -> Result<CountedGpus, BadGpuRequest> {
    let bad = |why| BadGpuRequest { text: text.to_owned(), why };
    // `gpu:2(S:0-1)` names sockets, which the count doesn't need.
    let rest = rest.split('(').next().unwrap_or(rest);
    let in_range = |count: u32| match count {
        0..=GANG_MEMBERS_MAX => Ok(count),
        _ => Err(bad(COUNT)),
    };
    if let Ok(count) = rest.parse::<u32>() {
        return Ok(CountedGpus { count: in_range(count)?, ..CountedGpus::default() });
    }
    let (kind, count) = rest.split_once([':', '=']).unwrap_or((rest, "1"));
    let count = in_range(count.parse().map_err(|_| bad(FORM))?)?;
    let (kind, model) = kind_and_model(kind).ok_or_else(|| bad(FORM))?;
    Ok(CountedGpus { count, kind, model, uncounted: Vec::new() })
}

/// Reads the type of a GPU: `1g.5gb`, `a100`, `h100_1g.10gb` or `h100-1g.10gb`.
fn kind_and_model(text: &str) -> Option<(Option<GpuRequest>, Option<String>)> {
    if let Ok(request) = request_by_name(text) {
        return Some((Some(request), None));
    }
    if let Some((model, profile)) = text.rsplit_once(['_', '-'])
        && let Ok(request) = request_by_name(profile)
        && is_model(model)
    {
        return Some((Some(request), Some(model.to_owned())));
    }
    is_model(text).then(|| (None, Some(text.to_owned())))
}

fn is_model(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '+');
    !text.is_empty() && text.chars().all(plain) && text.contains(|c: char| c.is_ascii_alphabetic())
}

/// `--nodes`: `2`, or a range such as `2-4`, of which the minimum is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodesOption(pub u32);

/// A text that is not a number of nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}: write how many nodes, such as 2")]
pub struct BadNodes {
    text: String,
}

impl FromStr for NodesOption {
    type Err = BadNodes;

    fn from_str(text: &str) -> Result<Self, BadNodes> {
        let bad = || BadNodes { text: text.to_owned() };
        let (least, most) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| match text.trim().parse::<u32>() {
            Ok(number @ 1..=GANG_MEMBERS_MAX) => Ok(number),
            Ok(_) | Err(_) => Err(bad()),
        };
        let (least, most) = (number(least)?, number(most)?);
        if least > most { Err(bad()) } else { Ok(Self(least)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(name: &str) -> GpuRequest {
        GpuRequest::Profile(name.parse().unwrap())
    }

    #[test]
    fn slurms_forms_of_one_gpu_are_parsed() {
        for (text, request) in [
            ("gpu", GpuRequest::Whole),
            ("gpu:1", GpuRequest::Whole),
            ("gres/gpu:1", GpuRequest::Whole),
            ("gres:gpu:1", GpuRequest::Whole),
            ("gpu:1(S:0-1)", GpuRequest::Whole),
            ("gpu:1g.5gb:1", profile("1g.5gb")),
            ("gpu:3g.20gb", profile("3g.20gb")),
        ] {
            let GresOption(counted) = text.parse().unwrap();
            assert_eq!((counted.count, counted.request()), (1, Some(request)), "{text:?}");
        }
        let one = CountedGpus { count: 1, ..CountedGpus::default() };
        assert_eq!("1".parse(), Ok(GpusOption { counted: one, text: "1".into() }));
        let kind = Some(profile("1g.5gb"));
        let slices = CountedGpus { count: 4, kind, ..CountedGpus::default() };
        assert_eq!("1g.5gb:4".parse(), Ok(GpusOption { counted: slices, text: "1g.5gb:4".into() }));
    }

    #[test]
    fn a_model_is_a_name_beside_the_count_and_the_profile() {
        for (text, count, model, kind) in [
            ("gpu:a100:2", 2, "a100", None),
            ("gpu:2080ti:4", 4, "2080ti", None),
            ("gpu:a100", 1, "a100", None),
            ("gpu:h100_1g.10gb:1", 1, "h100", Some(profile("1g.10gb"))),
            ("gpu:nvidia_h100_80gb_hbm3:1", 1, "nvidia_h100_80gb_hbm3", None),
            ("gpu:v100l:1,lscratch:50", 1, "v100l", None),
        ] {
            let GresOption(counted) = text.parse().unwrap();

            assert_eq!((counted.count, counted.model.as_deref()), (count, Some(model)), "{text}");
            assert_eq!(counted.kind, kind, "{text}");
        }
        let GresOption(other) = "lscratch:50".parse().unwrap();
        assert_eq!((other.count, other.uncounted), (0, vec!["lscratch".to_owned()]));
    }

    #[test]
    fn nodes_are_one_number_or_the_least_of_a_range() {
        assert_eq!("2".parse(), Ok(NodesOption(2)));
        assert_eq!("2-2".parse(), Ok(NodesOption(2)));
        assert_eq!("1-4".parse(), Ok(NodesOption(1)));
        for text in ["0", "4-1", "x", "", "1000"] {
            assert!(text.parse::<NodesOption>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn options_that_one_job_cannot_have_are_refused_with_the_valid_form() {
        for (text, hint) in [
            ("gpu:257", "1 to 256"),
            ("gpu:1g.5gb:257", "1 to 256"),
            ("gpu:a100:1,gpu:v100:1", "one kind"),
            ("shard:1", "--vram 10G"),
            ("mps:50", "--vram 10G"),
            ("gpus:1", "gpu:4"),
            ("gpu:1g.5gb:x", "gpu:4"),
            ("gpu:a 100", "gpu:4"),
        ] {
            let refused = text.parse::<GresOption>().unwrap_err().to_string();

            assert!(refused.contains(hint), "{text:?}: {refused}");
        }
    }

    #[test]
    fn memory_is_an_amount_with_its_unit_or_left_to_tessera() {
        assert_eq!("auto".parse(), Ok(VramOption(GpuRequest::Unknown)));
        assert_eq!("10G".parse(), Ok(VramOption(GpuRequest::Memory(Bytes::from_mib(10_240)))));
        let bare = "9".parse::<VramOption>().unwrap_err().to_string();
        assert!(bare.contains("9M") && bare.contains("9G"), "{bare}");
        assert!("lots".parse::<VramOption>().is_err());
    }
}
