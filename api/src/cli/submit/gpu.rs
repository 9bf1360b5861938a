//! How much of a GPU a user asks for, in our words (`--vram`, `--profile`) and in those of
//! Slurm (`--gres`, `--gpus`, `--exclusive`).

use std::str::FromStr;

use tessera_model::Bytes;
use tessera_model::spec::{GpuAsk, ask_by_name};

/// An ask that can't be met as written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}: {why}")]
pub struct BadGpuAsk {
    text: String,
    why: &'static str,
}

const ONE_GPU: &str = "a job runs on one GPU or one slice of it; ask for one";
const MODEL: &str = "Tessera chooses the GPU; instead of a model write what the job needs: \
                     --vram 20G, --profile 3g.20gb, or --gpus 1 for a whole GPU";
const FORM: &str = "write gpu:1 for a whole GPU or gpu:1g.5gb:1 for a slice";

/// `--profile`: a MIG profile, or a compute instance of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named(pub GpuAsk);

impl FromStr for Named {
    type Err = tessera_model::spec::BadField;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        ask_by_name(text).map(Self)
    }
}

/// `--vram`: an amount, or `auto`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vram(pub GpuAsk);

impl FromStr for Vram {
    type Err = tessera_model::units::BadBytes;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self(GpuAsk::Unknown));
        }
        text.parse().map(|bytes: Bytes| Self(GpuAsk::Memory(bytes)))
    }
}

/// `--gpus`, `--gpus-per-node`, `--gpus-per-task`: `1`, `1g.5gb:1` or `1g.5gb`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpus(pub GpuAsk);

impl FromStr for Gpus {
    type Err = BadGpuAsk;

    fn from_str(text: &str) -> Result<Self, BadGpuAsk> {
        count_and_kind(text, text).map(Self)
    }
}

/// `--gres`: `gpu`, `gpu:1` or `gpu:1g.5gb:1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gres(pub GpuAsk);

impl FromStr for Gres {
    type Err = BadGpuAsk;

    fn from_str(text: &str) -> Result<Self, BadGpuAsk> {
        let rest = match text.strip_prefix("gres/").unwrap_or(text).strip_prefix("gpu") {
            Some("") => return Ok(Self(GpuAsk::Whole)),
            Some(rest) => rest.strip_prefix(':'),
            None => None,
        };
        let rest = rest.ok_or(BadGpuAsk { text: text.to_owned(), why: FORM })?;
        count_and_kind(text, rest).map(Self)
    }
}

/// Reads `1`, `kind` or `kind:1`, where a kind is a MIG profile.
///
/// A bare count means whole GPUs: a script that was written for them may need all of it.
fn count_and_kind(text: &str, rest: &str) -> Result<GpuAsk, BadGpuAsk> {
    let bad = |why| BadGpuAsk { text: text.to_owned(), why };
    if let Ok(count) = rest.parse::<u32>() {
        return if count == 1 { Ok(GpuAsk::Whole) } else { Err(bad(ONE_GPU)) };
    }
    let (kind, count) = rest.split_once(':').unwrap_or((rest, "1"));
    match count.parse::<u32>() {
        Ok(1) => {}
        Ok(_) => return Err(bad(ONE_GPU)),
        Err(_) => return Err(bad(FORM)),
    }
    ask_by_name(kind).map_err(|_| bad(MODEL))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(name: &str) -> GpuAsk {
        GpuAsk::Profile(name.parse().unwrap())
    }

    #[test]
    fn slurms_words_for_one_gpu_are_understood() {
        for (text, ask) in [
            ("gpu", GpuAsk::Whole),
            ("gpu:1", GpuAsk::Whole),
            ("gres/gpu:1", GpuAsk::Whole),
            ("gpu:1g.5gb:1", profile("1g.5gb")),
            ("gpu:3g.20gb", profile("3g.20gb")),
        ] {
            assert_eq!(text.parse(), Ok(Gres(ask)), "{text:?}");
        }
        assert_eq!("1".parse(), Ok(Gpus(GpuAsk::Whole)));
        assert_eq!("1g.5gb:1".parse(), Ok(Gpus(profile("1g.5gb"))));
    }

    #[test]
    fn what_one_job_cannot_have_is_refused_with_what_to_write() {
        for (text, hint) in [
            ("gpu:2", "ask for one"),
            ("gpu:0", "ask for one"),
            ("gpu:1g.5gb:2", "ask for one"),
            ("gpu:a100:1", "--vram 20G"),
            ("gpu:a100", "--vram 20G"),
            ("shard:1", "gpu:1"),
            ("gpus:1", "gpu:1"),
            ("gpu:1g.5gb:x", "gpu:1"),
        ] {
            let refused = text.parse::<Gres>().unwrap_err().to_string();

            assert!(refused.contains(hint), "{text:?}: {refused}");
        }
    }

    #[test]
    fn memory_is_an_amount_or_left_to_tessera() {
        assert_eq!("auto".parse(), Ok(Vram(GpuAsk::Unknown)));
        assert_eq!("10G".parse(), Ok(Vram(GpuAsk::Memory(Bytes::from_mib(10_240)))));
        assert!("lots".parse::<Vram>().is_err());
    }
}
