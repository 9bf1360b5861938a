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

const COUNT: &str = "request 1 to 256 GPUs; each has its own process";
const MODEL: &str = "Tessera chooses the GPU; instead of a model write what the job needs: \
                     --vram 20G, --profile 3g.20gb, or --gpus 1 for a whole GPU";
const FORM: &str = "write gpu:4 for whole GPUs or gpu:1g.5gb:1 for slices";

/// `--profile`: a MIG profile, or a compute instance of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedGpu(pub GpuRequest);

impl FromStr for NamedGpu {
    type Err = tessera_model::spec::BadField;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        request_by_name(text).map(Self)
    }
}

/// `--vram`: an amount, or `auto`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VramOption(pub GpuRequest);

impl FromStr for VramOption {
    type Err = tessera_model::units::BadBytes;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self(GpuRequest::Unknown));
        }
        text.parse().map(|bytes: Bytes| Self(GpuRequest::Memory(bytes)))
    }
}

/// `--gpus`, `--gpus-per-node`, `--gpus-per-task`: `4`, `1g.5gb:4` or `1g.5gb`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpusOption(pub CountedGpus);

/// How many GPUs or slices, and of what kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedGpus {
    /// How many.
    pub count: u32,
    /// The kind, if one is named; whole GPUs, unless another option gives the size.
    pub kind: Option<GpuRequest>,
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
        count_and_kind(text, text).map(Self)
    }
}

/// `--gres`: `gpu`, `gpu:4` or `gpu:1g.5gb:4`, on each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GresOption(pub CountedGpus);

impl FromStr for GresOption {
    type Err = BadGpuRequest;

    fn from_str(text: &str) -> Result<Self, BadGpuRequest> {
        let rest = match text.strip_prefix("gres/").unwrap_or(text).strip_prefix("gpu") {
            Some("") => return Ok(Self(CountedGpus { count: 1, kind: None })),
            Some(rest) => rest.strip_prefix(':'),
            None => None,
        };
        let rest = rest.ok_or(BadGpuRequest { text: text.to_owned(), why: FORM })?;
        count_and_kind(text, rest).map(Self)
    }
}

/// Reads `4`, `kind` or `kind:4`, where a kind is a MIG profile.
///
/// A bare count means whole GPUs, unless another option gives the size: a script that was written
/// for them may need all of them.
fn count_and_kind(text: &str, rest: &str) -> Result<CountedGpus, BadGpuRequest> {
    let bad = |why| BadGpuRequest { text: text.to_owned(), why };
    let in_range = |count: u32| match count {
        1..=GANG_MEMBERS_MAX => Ok(count),
        _ => Err(bad(COUNT)),
    };
    if let Ok(count) = rest.parse::<u32>() {
        return Ok(CountedGpus { count: in_range(count)?, kind: None });
    }
    let (kind, count) = rest.split_once(':').unwrap_or((rest, "1"));
    let count = in_range(count.parse().map_err(|_| bad(FORM))?)?;
    let kind = request_by_name(kind).map_err(|_| bad(MODEL))?;
    Ok(CountedGpus { count, kind: Some(kind) })
}

/// `--nodes`: `2`, or `2-2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodesOption(pub u32);

/// A text that is not a number of nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadNodes {
    /// It is no number, or none that a gang can have.
    #[error("{text:?}: write how many nodes, such as 2")]
    NotANumber {
        /// What was given.
        text: String,
    },
    /// It gives a smallest and a largest number.
    #[error("{text:?}: a range is not supported; write one number")]
    Range {
        /// What was given.
        text: String,
    },
}

impl FromStr for NodesOption {
    type Err = BadNodes;

    fn from_str(text: &str) -> Result<Self, BadNodes> {
        let (least, most) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| match text.parse::<u32>() {
            Ok(number @ 1..=GANG_MEMBERS_MAX) => Ok(number),
            Ok(_) | Err(_) => Err(BadNodes::NotANumber { text: text.to_owned() }),
        };
        let (least, most) = (number(least)?, number(most)?);
        if least != most {
            return Err(BadNodes::Range { text: text.to_owned() });
        }
        Ok(Self(least))
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
            ("gpu:1g.5gb:1", profile("1g.5gb")),
            ("gpu:3g.20gb", profile("3g.20gb")),
        ] {
            let GresOption(counted) = text.parse().unwrap();
            assert_eq!((counted.count, counted.request()), (1, Some(request)), "{text:?}");
        }
        assert_eq!("1".parse(), Ok(GpusOption(CountedGpus { count: 1, kind: None })));
        let slices = CountedGpus { count: 4, kind: Some(profile("1g.5gb")) };
        assert_eq!("1g.5gb:4".parse(), Ok(GpusOption(slices)));
    }

    #[test]
    fn nodes_are_one_number() {
        assert_eq!("2".parse(), Ok(NodesOption(2)));
        assert_eq!("2-2".parse(), Ok(NodesOption(2)));
        for text in ["0", "1-4", "x", "", "1000"] {
            assert!(text.parse::<NodesOption>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_one_job_cannot_have_is_refused_with_what_to_write() {
        for (text, hint) in [
            ("gpu:0", "1 to 256"),
            ("gpu:257", "1 to 256"),
            ("gpu:1g.5gb:0", "1 to 256"),
            ("gpu:a100:1", "--vram 20G"),
            ("gpu:a100", "--vram 20G"),
            ("shard:1", "gpu:4"),
            ("gpus:1", "gpu:4"),
            ("gpu:1g.5gb:x", "gpu:4"),
        ] {
            let refused = text.parse::<GresOption>().unwrap_err().to_string();

            assert!(refused.contains(hint), "{text:?}: {refused}");
        }
    }

    #[test]
    fn memory_is_an_amount_or_left_to_tessera() {
        assert_eq!("auto".parse(), Ok(VramOption(GpuRequest::Unknown)));
        assert_eq!("10G".parse(), Ok(VramOption(GpuRequest::Memory(Bytes::from_mib(10_240)))));
        assert!("lots".parse::<VramOption>().is_err());
    }
}
