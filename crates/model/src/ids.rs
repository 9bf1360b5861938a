//! Typed ids: one type a kind, so that none can be passed for another.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A text that is not the id that it was taken for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {kind}: expected {expected}")]
pub struct BadId {
    /// The kind of id that was expected.
    pub kind: &'static str,
    /// What was given.
    pub text: String,
    /// What one looks like.
    pub expected: &'static str,
}

/// Declares an id over a UUID, shown and parsed as `prefix_<uuid>`, so that an id in a log
/// names its own kind.
macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(into = "String", try_from = "String")]
        pub struct $name(uuid::Uuid);

        impl $name {
            /// Wraps a UUID that was made elsewhere.
            pub const fn from_uuid(uuid: uuid::Uuid) -> Self {
                Self(uuid)
            }

            /// Returns the bare UUID, as the database keeps it.
            pub const fn as_uuid(self) -> uuid::Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "_{}"), self.0.simple())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                text.strip_prefix(concat!($prefix, "_"))
                    .and_then(|hex| uuid::Uuid::try_parse(hex).ok())
                    .map(Self)
                    .ok_or_else(|| BadId {
                        kind: stringify!($name),
                        text: text.to_owned(),
                        expected: concat!($prefix, "_ and 32 hexadecimal digits"),
                    })
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadId;

            fn try_from(text: String) -> Result<Self, BadId> {
                text.parse()
            }
        }
    };
}

uuid_id!(
    /// One run of a job. Made when the placement is decided (UUIDv7), never reused: results
    /// name it, and so fence out the results of older runs (rule F13).
    AttemptId,
    "att"
);
uuid_id!(
    /// One machine that runs an agent; taken from the node's certificate, never from a frame.
    NodeId,
    "node"
);
uuid_id!(
    /// One recorded decision of the placement loop.
    DecisionId,
    "dec"
);
uuid_id!(
    /// One accepted submit: a single job, or an array of jobs that share a specification.
    SubmissionId,
    "sub"
);
uuid_id!(
    /// One layout plan for one GPU.
    PlanId,
    "plan"
);
uuid_id!(
    /// One controller process's installation: stays with its data folder.
    ControllerId,
    "ctl"
);
uuid_id!(
    /// One boot of one machine, as the kernel names it. A new boot id proves that every
    /// process of the old boot is dead.
    BootId,
    "boot"
);

/// A job's number, as people write it: positive, in the order of acceptance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(u64);

impl JobId {
    /// Wraps a number that the store gave out.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Returns the bare number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {}", self.0)
    }
}

impl FromStr for JobId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        match text.parse::<u64>() {
            // The store keeps numbers as signed 64-bit integers.
            Ok(number @ 1..=0x7fff_ffff_ffff_ffff) => Ok(Self(number)),
            Ok(_) | Err(_) => Err(BadId {
                kind: "JobId",
                text: text.to_owned(),
                expected: "a positive whole number such as 42",
            }),
        }
    }
}

/// How people name a job: `42`, or `42_7` for task 7 of array 42.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobRef {
    /// A job by its own number; for an array, the number of the whole array.
    Job(JobId),
    /// One task of an array.
    Task {
        /// The array's number, which is the number of its first task.
        array: JobId,
        /// The task's index within the array.
        index: u32,
    },
}

impl fmt::Display for JobRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(job) => job.fmt(f),
            Self::Task { array, index } => write!(f, "{array}_{index}"),
        }
    }
}

impl FromStr for JobRef {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId {
            kind: "JobRef",
            text: text.to_owned(),
            expected: "a job such as 42, or a task of an array such as 42_7",
        };
        match text.split_once('_') {
            None => text.parse().map(Self::Job).map_err(|_| bad()),
            Some((array, index)) => Ok(Self::Task {
                array: array.parse().map_err(|_| bad())?,
                index: index.parse().map_err(|_| bad())?,
            }),
        }
    }
}

/// Declares an id that is a text with its own rules.
macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $expected:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(into = "String", try_from = "String")]
        pub struct $name(String);

        impl $name {
            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(BadId { kind: stringify!($name), text: text.to_owned(), expected: $expected })
                }
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadId;

            fn try_from(text: String) -> Result<Self, BadId> {
                text.parse()
            }
        }
    };
}

/// Longest UUID text that NVML gives out, with its prefix (`NVML_DEVICE_UUID_V2_BUFFER_SIZE`).
const DEVICE_UUID_MAX: usize = 96;

fn is_device_uuid(text: &str, prefix: &str) -> bool {
    text.len() <= DEVICE_UUID_MAX
        && text.strip_prefix(prefix).is_some_and(|rest| {
            !rest.is_empty()
                && rest.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '/'))
        })
}

text_id!(
    /// One GPU, by the UUID that NVML gives it (`GPU-…`).
    GpuId,
    "GPU- and the UUID that NVML reports",
    |text| is_device_uuid(text, "GPU-")
);
text_id!(
    /// One slice, as `CUDA_VISIBLE_DEVICES` takes it: a MIG device (`MIG-…`), or a whole GPU
    /// (`GPU-…`) where MIG is off. Changes whenever an instance is made again.
    SliceId,
    "MIG- or GPU- and the UUID that NVML reports",
    |text| is_device_uuid(text, "MIG-") || is_device_uuid(text, "GPU-")
);
text_id!(
    /// A node's name, as people write it.
    NodeName,
    "1 to 63 letters, digits, dots and dashes, the first a letter or digit",
    |text| {
        (1..=63).contains(&text.len())
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'))
    }
);

/// The identity of a node, as its certificate states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIdentity {
    /// The UUID that stays the same if the node joins again.
    pub id: NodeId,
    /// The name under which the node joined.
    pub name: NodeName,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_shows_its_kind_and_reads_back() {
        let id = AttemptId::from_uuid(uuid::Uuid::from_u128(7));

        assert_eq!(id.to_string(), "att_00000000000000000000000000000007");
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn an_id_of_another_kind_is_refused_with_what_was_expected() {
        let node = NodeId::from_uuid(uuid::Uuid::from_u128(7)).to_string();

        let refused = node.parse::<AttemptId>().unwrap_err();

        assert!(refused.to_string().contains("att_ and 32 hexadecimal digits"), "{refused}");
    }

    #[test]
    fn a_task_of_an_array_is_named_by_array_and_index() {
        let task = "42_7".parse::<JobRef>().unwrap();

        assert_eq!(task, JobRef::Task { array: JobId::from_number(42), index: 7 });
        assert_eq!(task.to_string(), "42_7");
    }

    #[test]
    fn job_numbers_that_the_store_cannot_hold_are_refused() {
        for text in ["0", "-1", "9223372036854775808", "4x", ""] {
            assert!(text.parse::<JobId>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn slices_are_mig_devices_or_whole_gpus() {
        assert!("MIG-2807b123-4e00-5c7a-a444-8f123a78b880".parse::<SliceId>().is_ok());
        assert!("GPU-2807b123-4e00-5c7a-a444-8f123a78b880".parse::<SliceId>().is_ok());
        assert!("MIG-".parse::<SliceId>().is_err());
        assert!("GPU-../../etc".parse::<SliceId>().is_err());
    }
}
