//! The container that a job's program runs in: its image, and the folders of the node that it sees.

use serde::{Deserialize, Serialize};

use crate::spec::BadField;

/// Most folders and files that a job may mount.
pub const MOUNTS_MAX: usize = 64;
/// Longest name of an image, and longest path of a mount: Linux takes no longer path.
const TEXT_BYTES_MAX: usize = 4_096;

/// A container, as a job's user requests it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRules {
    /// The image: a name in the user's image store on the node, or the path of a `.sif` file.
    pub image: String,
    /// What the program sees of the node, in addition to its working folder.
    pub mounts: Vec<ContainerMount>,
    /// Where the program starts inside; by default in its working folder.
    pub work_dir: Option<String>,
}

/// A folder or file of the node that is seen inside of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerMount {
    /// Its path on the node.
    pub source: String,
    /// Its path inside.
    pub target: String,
    /// Whether the program can't write there.
    pub read_only: bool,
}

impl ContainerMount {
    /// Returns a mount of a path at the same place.
    pub fn same(path: impl Into<String>) -> Self {
        let path = path.into();
        Self { source: path.clone(), target: path, read_only: false }
    }
}

impl ContainerRules {
    /// Reads a request: an image, mounts as `SOURCE[:TARGET[:ro|rw]]`, and a folder.
    ///
    /// # Errors
    ///
    /// [`BadField`] names what is wrong.
    pub fn parse(
        image: &str,
        mounts: &[String],
        work_dir: Option<String>,
    ) -> Result<Self, BadField> {
        if mounts.len() > MOUNTS_MAX {
            return Err(BadField::new(
                "container.mounts",
                format!("there are {} of them", mounts.len()),
                format!("at most {MOUNTS_MAX}"),
            ));
        }
        let work_dir = work_dir.map(|folder| inner_path("container.work_dir", &folder));
        Ok(Self {
            image: parse_image(image)?,
            mounts: mounts.iter().map(|mount| parse_mount(mount)).collect::<Result<_, _>>()?,
            work_dir: work_dir.transpose()?,
        })
    }

    /// Returns how many bytes its texts take in a frame.
    pub fn bytes(&self) -> usize {
        let mounts = self.mounts.iter().map(|mount| mount.source.len() + mount.target.len() + 20);
        self.image.len() + mounts.sum::<usize>() + self.work_dir.as_ref().map_or(0, String::len)
    }

    /// Returns whether the image is a file of apptainer.
    pub fn is_image_file(&self) -> bool {
        self.image.starts_with('/')
    }
}

/// Reads the name of an image. `docker://` in front, and `#` behind a registry as enroot writes it, are taken.
fn parse_image(text: &str) -> Result<String, BadField> {
    let bad = |problem: String| {
        let expected = "an image such as python:3.12, nvcr.io/nvidia/pytorch:24.05-py3, or the absolute path of a \
                        .sif file";
        Err(BadField::new("container.image", problem, expected))
    };
    let name = text.strip_prefix("docker://").unwrap_or(text);
    let name = name.strip_prefix("containers-storage:").unwrap_or(name);
    let shown = || format!("{text:?} is no image");
    if name.is_empty() || name.len() > TEXT_BYTES_MAX || !name.chars().all(|c| c.is_ascii_graphic())
    {
        return bad(shown());
    }
    if name.ends_with(".sqsh") {
        return bad(format!("{text:?} is an image of enroot's, which does not run here"));
    }
    if name.starts_with('/') {
        return match name.ends_with(".sif") {
            true => Ok(name.to_owned()),
            false => bad(format!("{text:?} is no file of an image that can run here")),
        };
    }
    let name = match name.split_once('#') {
        Some((registry, rest)) => format!("{registry}/{rest}"),
        None => name.to_owned(),
    };
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._-/:@+".contains(c);
    match name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_part) {
        true => Ok(name),
        false => bad(shown()),
    }
}

fn parse_mount(text: &str) -> Result<ContainerMount, BadField> {
    let field = "container.mounts";
    let mut parts = text.split(':');
    let source = parts.next().unwrap_or_default();
    let target = parts.next().unwrap_or(source);
    let read_only = match parts.next() {
        None | Some("rw") => false,
        Some("ro") => true,
        Some(other) => {
            return Err(BadField::new(
                field,
                format!("{text:?} ends with {other:?}"),
                "SOURCE:TARGET:ro or SOURCE:TARGET:rw",
            ));
        }
    };
    if parts.next().is_some() {
        let expected = "SOURCE:TARGET, each an absolute path without colons";
        return Err(BadField::new(field, format!("{text:?} has too many parts"), expected));
    }
    Ok(ContainerMount {
        source: inner_path(field, source)?,
        target: inner_path(field, target)?,
        read_only,
    })
}

/// Reads an absolute path that is not the root: what is mounted there would hide the image.
fn inner_path(field: &str, text: &str) -> Result<String, BadField> {
    let trimmed = text.trim_end_matches('/');
    let is_plain = trimmed.chars().all(|c| !c.is_control() && c != ',');
    match trimmed.starts_with('/') && is_plain && trimmed.len() <= TEXT_BYTES_MAX {
        true => Ok(trimmed.to_owned()),
        false => Err(BadField::new(
            field,
            format!("{text:?} is no path below the root"),
            "an absolute path without commas, such as /data",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(image: &str, mounts: &[&str]) -> Result<ContainerRules, BadField> {
        let mounts: Vec<String> = mounts.iter().map(|mount| (*mount).to_owned()).collect();
        ContainerRules::parse(image, &mounts, None)
    }

    #[test]
    fn images_are_named_as_podman_docker_and_enroot_name_them() {
        for (text, image) in [
            ("python:3.12", "python:3.12"),
            ("docker://python:3.12-slim", "python:3.12-slim"),
            ("nvcr.io#nvidia/pytorch:24.05-py3", "nvcr.io/nvidia/pytorch:24.05-py3"),
            ("docker://nvcr.io#nvidia/pytorch:24.05-py3", "nvcr.io/nvidia/pytorch:24.05-py3"),
            ("registry:5000/team/image@sha256:00ff", "registry:5000/team/image@sha256:00ff"),
            ("/images/train.sif", "/images/train.sif"),
        ] {
            assert_eq!(parsed(text, &[]).unwrap().image, image, "{text}");
        }
        for (text, words) in [
            ("", "is no image"),
            ("-v", "is no image"),
            ("--privileged", "is no image"),
            ("a b", "is no image"),
            ("image.sqsh", "enroot"),
            ("/images/train.img", "no file of an image"),
        ] {
            let bad = parsed(text, &[]).unwrap_err();
            assert!(bad.problem.contains(words), "{text}: {bad}");
            assert!(bad.expected.contains("python:3.12"), "{bad}");
        }
    }

    #[test]
    fn a_mount_names_a_folder_a_place_and_whether_it_is_written() {
        let rules = parsed("a", &["/data/", "/home/ada:/work", "/set:/set:ro"]).unwrap();
        let mount = |source: &str, target: &str, read_only| ContainerMount {
            source: source.into(),
            target: target.into(),
            read_only,
        };
        let expected = [
            mount("/data", "/data", false),
            mount("/home/ada", "/work", false),
            mount("/set", "/set", true),
        ];
        assert_eq!(rules.mounts, expected);
        for text in ["data", "/", "/a:b", "/a:/b:z", "/a:/b:ro:x", "/a:/", "/a,/b", ""] {
            assert_eq!(parsed("a", &[text]).unwrap_err().field, "container.mounts", "{text}");
        }
        let many = vec!["/a"; MOUNTS_MAX + 1];
        assert!(parsed("a", &many).is_err());
    }
}
