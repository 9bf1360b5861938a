//! The operator's settings for concepts of batch schedulers: partitions, qualities of service and
//! features of nodes. They also decide whether a request for one GPU may get a part of one.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tessera_model::NodeName;
use tessera_model::place::{PlaceFilter, is_model, node_list};
use tessera_model::share::SharingMode;
use tessera_model::spec::{BadField, Class, GpuRequest, JobSpec, Priority};
use tessera_placement::ClusterView;

/// A partition, as in the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct PartitionSettings {
    /// Its nodes, such as `n1,gpu[1-3]`; all nodes if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
    /// The model of its GPUs, such as `a100`; any, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_model: Option<String>,
    /// The default class of its jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// The default priority of its jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Whether a job that requests one GPU may start on a part of one; as for all partitions, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_gpus: Option<bool>,
}

/// A quality of service, as in the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct QosSettings {
    /// The default class of its jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// The default priority of its jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
}

/// The default way of sharing, for jobs that state none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShareDefault {
    /// It has its slice to itself.
    #[default]
    Exclusive,
    /// The controller decides, as with `--share auto`.
    Auto,
}

impl ShareDefault {
    /// Returns the value in the settings.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Auto => "auto",
        }
    }
}

impl std::str::FromStr for ShareDefault {
    type Err = BadField;

    fn from_str(text: &str) -> Result<Self, BadField> {
        match text {
            "exclusive" => Ok(Self::Exclusive),
            "auto" => Ok(Self::Auto),
            other => Err(BadField::new(
                "share-default",
                format!("{other:?} is unknown"),
                "exclusive (the default) or auto",
            )),
        }
    }
}

/// The meaning of batch schedulers' concepts on this cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Site {
    /// Partitions by name.
    pub partitions: BTreeMap<String, PartitionSettings>,
    /// Qualities of service by name.
    pub qos: BTreeMap<String, QosSettings>,
    /// Features by name, each with its nodes.
    pub features: BTreeMap<String, String>,
    /// Whether a job that requests one GPU may start on a part of one.
    pub share_gpus: bool,
    /// The default way of sharing, for jobs that state none.
    pub share_default: ShareDefault,
}

/// The parts of a request other than its job specification.
#[derive(Clone, Debug, Default)]
pub struct SiteRequest {
    /// The features that it needs.
    pub constraint: Option<String>,
    /// Whether it sets a class.
    pub has_class: bool,
    /// Whether it sets a priority.
    pub has_priority: bool,
    /// Whether it sets a way of sharing.
    pub has_share: bool,
    /// Whether it requests a GPU without co-runners, whatever the settings are.
    pub exclusive: bool,
}

impl Site {
    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// [`BadField`] names the wrong setting and the expected value.
    pub fn check(&self) -> Result<(), BadField> {
        let named = self.partitions.iter().filter_map(|(name, partition)| {
            Some((format!("partitions.{name}.nodes"), partition.nodes.as_ref()?))
        });
        let features =
            self.features.iter().map(|(name, nodes)| (format!("features.{name}"), nodes));
        for (field, nodes) in named.chain(features) {
            node_list(&field, nodes)?;
        }
        Ok(())
    }

    /// Applies the settings to a job, and returns what its user should know.
    ///
    /// # Errors
    ///
    /// [`BadField`] names an unknown value, and the known ones.
    pub fn apply(
        &self,
        request: &SiteRequest,
        spec: &mut JobSpec,
        cluster: &ClusterView,
    ) -> Result<Vec<String>, BadField> {
        let mut remarks = Vec::new();
        let partition = self.partition(spec, &mut remarks)?;
        let qos = self.qos(spec, &mut remarks)?;
        if let Some(partition) = partition {
            if let Some(nodes) = &partition.nodes {
                restrict("partition", &mut spec.place, node_list("partition", nodes)?)?;
            }
            spec.place.model = spec.place.model.take().or_else(|| partition.gpu_model.clone());
        }
        let classes = [partition.and_then(|found| found.class), qos.and_then(|found| found.class)];
        if let Some(class) = classes.into_iter().flatten().next().filter(|_| !request.has_class) {
            spec.class = class;
        }
        let priorities =
            [qos.and_then(|found| found.priority), partition.and_then(|found| found.priority)];
        let priority = priorities.into_iter().flatten().next();
        if let Some(priority) = priority.filter(|_| !request.has_priority) {
            spec.queue_rank.priority = priority;
        }
        if let Some(text) = &request.constraint {
            self.constrain(text, spec, cluster, &mut remarks)?;
        }
        let shares = partition.and_then(|found| found.share_gpus).unwrap_or(self.share_gpus);
        let takes_one = spec.gpu == GpuRequest::Whole
            && spec.gang.is_none()
            && spec.share == SharingMode::Exclusive;
        if shares && takes_one && !request.exclusive {
            spec.gpu = GpuRequest::Unknown;
            remarks.push(SHARED.to_owned());
        }
        let is_open = !request.has_share && !request.exclusive && spec.gang.is_none();
        if self.share_default == ShareDefault::Auto
            && is_open
            && spec.share == SharingMode::Exclusive
            && matches!(spec.gpu, GpuRequest::Memory(_))
        {
            spec.share = SharingMode::Auto;
            remarks.push(AUTO.to_owned());
        }
        Ok(remarks)
    }

    fn partition(
        &self,
        spec: &mut JobSpec,
        remarks: &mut Vec<String>,
    ) -> Result<Option<&PartitionSettings>, BadField> {
        let Some(names) = &spec.partition else { return Ok(None) };
        if self.partitions.is_empty() {
            remarks.push(format!(
                "partition {names} has no effect: this cluster has one queue for all jobs"
            ));
            return Ok(None);
        }
        // Slurm takes the partition where the job starts first; here it is the first one that
        // exists.
        let found = names.split(',').find_map(|name| self.partitions.get_key_value(name.trim()));
        let Some((name, partition)) = found else {
            let known = self.partitions.keys().map(String::as_str);
            return Err(unknown("partition", names, known));
        };
        let name = name.clone();
        spec.partition = Some(name);
        Ok(Some(partition))
    }

    fn qos(
        &self,
        spec: &JobSpec,
        remarks: &mut Vec<String>,
    ) -> Result<Option<&QosSettings>, BadField> {
        let Some(name) = &spec.qos else { return Ok(None) };
        if self.qos.is_empty() {
            remarks.push(format!(
                "qos {name} has no effect: this cluster has none; write --class or --priority"
            ));
            return Ok(None);
        }
        let found = self.qos.get(name.as_str());
        found.map(Some).ok_or_else(|| unknown("qos", name, self.qos.keys().map(String::as_str)))
    }

    /// Restricts a job to the nodes with the features that it needs: `a&b` needs both, `a|b` one of them.
    fn constrain(
        &self,
        text: &str,
        spec: &mut JobSpec,
        cluster: &ClusterView,
        remarks: &mut Vec<String>,
    ) -> Result<(), BadField> {
        let plain: String = text.chars().filter(|c| !"[]()\"' ".contains(*c)).collect();
        for term in plain.split(['&', ',']).filter(|term| !term.is_empty()) {
            let names = term.split('|').map(|name| name.split('*').next().unwrap_or(name));
            let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
            let mut nodes = BTreeSet::new();
            let mut is_known = false;
            for name in &names {
                if let Some(found) = self.nodes_with(name, cluster)? {
                    is_known = true;
                    nodes.extend(found);
                } else if !self.features.is_empty() || looks_like_model(name) {
                    return Err(self.unknown_feature(name, cluster));
                } else {
                    remarks.push(format!(
                        "constraint {name} has no effect: this cluster's operator defines no \
                         features"
                    ));
                    is_known |= names.len() > 1;
                    nodes.extend(cluster.gpus.iter().map(|gpu| gpu.node.clone()));
                }
            }
            if let [name] = names.as_slice()
                && !self.features.contains_key(*name)
                && is_known
                && spec.place.model.is_none()
            {
                spec.place.model = Some((*name).to_owned());
            } else if is_known {
                restrict("constraint", &mut spec.place, nodes)?;
            }
        }
        Ok(())
    }

    /// Returns the nodes with a feature; `None` if the feature is unknown.
    fn nodes_with(
        &self,
        name: &str,
        cluster: &ClusterView,
    ) -> Result<Option<BTreeSet<NodeName>>, BadField> {
        if let Some(nodes) = self.features.get(name) {
            return node_list("constraint", nodes).map(Some);
        }
        let of_model = cluster.gpus.iter().filter(|gpu| is_model(&gpu.model, name));
        let nodes: BTreeSet<NodeName> = of_model.map(|gpu| gpu.node.clone()).collect();
        Ok((!nodes.is_empty()).then_some(nodes))
    }

    fn unknown_feature(&self, name: &str, cluster: &ClusterView) -> BadField {
        let models = models(cluster);
        let known =
            self.features.keys().map(String::as_str).chain(models.iter().map(String::as_str));
        unknown("constraint", name, known)
    }
}

/// The note for a user whose job may share by the cluster's default.
const AUTO: &str = "by this cluster's default (share-default = auto) the job may share its slice with another job of \
                    yours where a benefit is predicted; --share exclusive gives it a slice alone";

const SHARED: &str = "one GPU was requested, and this cluster shares GPUs. The job gets a slice of one, and a larger \
                      one if it runs out of memory. Write --vram with the amount that it needs, or --exclusive for \
                      the whole GPU";

/// Checks that a cluster has what a job is restricted to.
///
/// # Errors
///
/// [`BadField`] names the unknown model or node, and the known ones.
pub fn check_place(place: &PlaceFilter, cluster: &ClusterView) -> Result<(), BadField> {
    let nodes: BTreeSet<&NodeName> = cluster.gpus.iter().map(|gpu| &gpu.node).collect();
    if let Some(model) = &place.model
        && !cluster.gpus.iter().any(|gpu| is_model(&gpu.model, model))
    {
        return Err(unknown("gpu_model", model, models(cluster).iter().map(String::as_str)));
    }
    if !place.nodes.is_empty() && !place.nodes.iter().any(|node| nodes.contains(node)) {
        let named: Vec<String> = place.nodes.iter().map(ToString::to_string).collect();
        return Err(unknown("nodelist", &named.join(","), nodes.iter().map(|node| node.as_str())));
    }
    Ok(())
}

fn models(cluster: &ClusterView) -> BTreeSet<String> {
    cluster.gpus.iter().map(|gpu| gpu.model.clone()).collect()
}

fn unknown<'n>(field: &str, name: &str, known: impl Iterator<Item = &'n str>) -> BadField {
    let known: Vec<&str> = known.collect();
    let expected = match known.as_slice() {
        [] => "nothing of that kind is known yet".to_owned(),
        known => format!("one of {}", known.join(", ")),
    };
    BadField::new(field, format!("this cluster has no {name}"), expected)
}

/// Restricts a job to some nodes, in addition to its earlier restrictions.
fn restrict(
    field: &str,
    place: &mut PlaceFilter,
    nodes: BTreeSet<NodeName>,
) -> Result<(), BadField> {
    let both = match place.nodes.is_empty() {
        true => nodes,
        false => place.nodes.intersection(&nodes).cloned().collect(),
    };
    if both.is_empty() {
        return Err(BadField::new(
            field,
            "no node has everything that is requested",
            "a partition, nodes and features that have a node in common",
        ));
    }
    place.nodes = both;
    Ok(())
}

/// Returns whether a word is the name of a GPU: one or two letters and digits, as in a100, h100 or
/// gh200; or rtx3090.
fn looks_like_model(word: &str) -> bool {
    let lower = word.to_ascii_lowercase();
    let lower = lower.strip_prefix("gpu_").or(lower.strip_prefix("gpu")).unwrap_or(&lower);
    let known = ["a", "v", "h", "b", "l", "t", "k", "p", "gh", "gb", "rtx", "gtx", "rtx_"];
    known.iter().any(|prefix| {
        lower.strip_prefix(prefix).is_some_and(|rest| {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            (1..=4).contains(&digits)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_model::spec::RawJobSpec;

    fn spec(change: impl FnOnce(&mut RawJobSpec)) -> JobSpec {
        let command = Some(vec!["/bin/true".into()]);
        let mut raw = RawJobSpec { command, ..RawJobSpec::default() };
        change(&mut raw);
        JobSpec::parse(raw).unwrap()
    }

    fn site() -> Site {
        let partition = PartitionSettings {
            nodes: Some("g[1-2]".into()),
            share_gpus: Some(true),
            ..PartitionSettings::default()
        };
        Site {
            partitions: [("gpu".to_owned(), partition)].into(),
            features: [("ib".to_owned(), "g2,g3".to_owned())].into(),
            ..Site::default()
        }
    }

    fn nodes(spec: &JobSpec) -> Vec<&str> {
        spec.place.nodes.iter().map(NodeName::as_str).collect()
    }

    #[test]
    fn a_partition_restricts_nodes_and_shares_single_gpus_only() {
        let view = ClusterView::default();
        let mut one = spec(|raw| {
            raw.gpu_whole = true;
            raw.partition = Some("other,gpu".into());
        });
        let mut two = spec(|raw| {
            raw.gpu_whole = true;
            raw.gang = Some((1, 2));
            raw.partition = Some("gpu".into());
        });
        let mut alone = one.clone();
        let exclusive = SiteRequest { exclusive: true, ..SiteRequest::default() };

        let remarks = site().apply(&SiteRequest::default(), &mut one, &view).unwrap();
        site().apply(&SiteRequest::default(), &mut two, &view).unwrap();
        site().apply(&exclusive, &mut alone, &view).unwrap();

        assert_eq!((nodes(&one), &one.gpu), (vec!["g1", "g2"], &GpuRequest::Unknown));
        assert!(remarks[0].contains("--exclusive"), "{remarks:?}");
        assert_eq!(two.gpu, GpuRequest::Unpartitioned);
        assert_eq!(alone.gpu, GpuRequest::Whole);
    }

    #[test]
    fn unknown_values_are_refused_with_the_known_ones() {
        let view = ClusterView::default();
        let mut other = spec(|raw| raw.partition = Some("cpu".into()));
        let refused = site().apply(&SiteRequest::default(), &mut other, &view).unwrap_err();
        assert!(refused.expected.contains("one of gpu"), "{refused}");

        let constraint =
            |text: &str| SiteRequest { constraint: Some(text.into()), ..SiteRequest::default() };
        let mut plain = spec(|_| {});
        let refused = site().apply(&constraint("haswell"), &mut plain, &view).unwrap_err();
        assert!(refused.expected.contains("one of ib"), "{refused}");
        site().apply(&constraint("ib"), &mut plain, &view).unwrap();
        assert_eq!(nodes(&plain), ["g2", "g3"]);
    }

    #[test]
    fn without_declarations_other_values_have_no_effect_and_models_are_refused() {
        let view = ClusterView::default();
        let constraint =
            |text: &str| SiteRequest { constraint: Some(text.into()), ..SiteRequest::default() };
        let mut spec = spec(|raw| {
            raw.partition = Some("gpu".into());
            raw.qos = Some("normal".into());
        });

        let remarks = Site::default().apply(&constraint("haswell&ib"), &mut spec, &view).unwrap();

        assert_eq!(remarks.len(), 4, "{remarks:?}");
        assert!(spec.place.is_open());
        for model in ["a100", "V100", "gpu_h100", "rtx3090", "a100|h100"] {
            assert!(
                Site::default().apply(&constraint(model), &mut spec, &view).is_err(),
                "{model}"
            );
        }
    }
}
