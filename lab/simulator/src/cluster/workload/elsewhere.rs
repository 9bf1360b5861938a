//! Times of measured jobs on GPU models on which they were not measured.
//!
//! An instance takes as long as one of the measured GPU with as many multiprocessors would: between
//! two that were measured the speed grows evenly with them. Below the smallest it falls in proportion,
//! and above the largest it stays. How many multiprocessors an instance has is what the drivers report
//! (the catalogue). Among GPUs of one generation, such as A30 and A100, that is about what they do.
//! Those of a newer one are faster for each multiprocessor, so that such times are upper bounds.
//! Memory is not estimated: a job is placed only where its request fits.

use std::collections::BTreeMap;

use tessera_model::mig::catalog;

use crate::cluster::job::{SimulatedJob, SliceTimes};
use crate::cluster::number::{float, whole};

/// Gives jobs times on these models where they have none, and notes it once for each model.
pub fn fill(jobs: &mut [SimulatedJob], models: &[&str]) -> Vec<String> {
    let mut notes = BTreeMap::new();
    for model in models {
        let Some(there) = multiprocessors(model) else { continue };
        for job in jobs.iter_mut().filter(|job| job.times_on(model).is_none()) {
            let measured = job
                .times
                .iter()
                .find_map(|(from, times)| Some((from.clone(), points(from, times)?)));
            let Some((from, points)) = measured else { continue };
            let times: SliceTimes = there
                .iter()
                .filter_map(|(slices, sms)| Some((*slices, at(&points, float(u64::from(*sms)))?)))
                .collect();
            job.times.insert((*model).to_owned(), times);
            notes.entry((*model).to_owned()).or_insert_with(|| describe_scaling(model, &from));
        }
    }
    notes.into_values().collect()
}

/// Notes that jobs have the same times on every one of these models, if some do: an entry under `*`
/// names no GPU on which it was measured.
pub fn anywhere(jobs: &[SimulatedJob], models: &[&str]) -> Option<String> {
    let named = |job: &SimulatedJob, model: &str| job.times.contains_key(model);
    let by_star = |job: &&SimulatedJob| {
        job.times.contains_key("*") && models.iter().any(|model| !named(job, model))
    };
    let many = jobs.iter().filter(by_star).count();
    (many > 0).then(|| {
        format!(
            "{many} of {} jobs have times for any GPU (under *, or as duration_s): they are \
             assumed to be as fast on {} as where they were measured",
            jobs.len(),
            models.join(" and ")
        )
    })
}

fn describe_scaling(model: &str, from: &str) -> String {
    format!(
        "nothing was measured on {model}: jobs are assumed to take as long as on as many \
         multiprocessors of {from}, and never less than on all of it"
    )
}

/// Returns the multiprocessors of a model's instances by compute slices. If no source states those
/// of a size, each slice counts as in the smallest known size.
fn multiprocessors(model: &str) -> Option<BTreeMap<u8, u16>> {
    let geometry = catalog::find(model).ok()?.geometry();
    let plain = geometry.plain();
    let profiles = || geometry.profiles.iter().filter(|profile| plain.contains(&profile.id));
    let known = profiles().filter(|profile| profile.sms > 0);
    let each = known.map(|p| p.sms / u16::from(p.compute_slices.max(1))).min()?;
    let sms = |sms: u16, slices: u8| if sms > 0 { sms } else { each * u16::from(slices) };
    Some(profiles().map(|p| (p.compute_slices, sms(p.sms, p.compute_slices))).collect())
}

/// Returns the measured times, as pairs of multiprocessors and milliseconds.
fn points(model: &str, times: &SliceTimes) -> Option<Vec<(f64, f64)>> {
    let sms = multiprocessors(model)?;
    let point = |(slices, ms): (&u8, &u64)| {
        Some((float(u64::from(*sms.get(slices)?)), float((*ms).max(1))))
    };
    let points: Vec<(f64, f64)> = times.iter().filter_map(point).collect();
    (!points.is_empty()).then_some(points)
}

/// Returns the time on this many multiprocessors, in milliseconds.
fn at(points: &[(f64, f64)], sms: f64) -> Option<u64> {
    let above = points.partition_point(|(known, _)| *known < sms);
    let ms = match (above.checked_sub(1).and_then(|below| points.get(below)), points.get(above)) {
        (Some((few, slow)), Some((many, fast))) => {
            let part = (sms - few) / (many - few);
            1.0 / ((1.0 - part) / slow + part / fast)
        }
        (None, Some((least, slow))) => slow * least / sms.max(1.0),
        (Some((_, fast)), None) => *fast,
        (None, None) => return None,
    };
    Some(whole(ms).max(1))
}

#[cfg(test)]
mod tests {
    use super::super::miso;
    use super::*;

    #[test]
    fn an_a30s_slices_take_as_long_as_an_a100s_with_as_many_multiprocessors() {
        let mut jobs = vec![miso::job("mobilenet_train64", 100).unwrap()];
        let notes = fill(&mut jobs, &["a30-24gb", "a100-40gb"]);

        for slices in [1, 2, 4] {
            let (there, here) =
                (jobs[0].time("a30-24gb", slices), jobs[0].time(miso::MODEL, slices));
            assert!(there.is_some() && there == here, "{slices}: {there:?}, {here:?}");
        }
        assert_eq!(notes.len(), 1, "measured models need no note: {notes:?}");
        assert!(notes[0].contains("a30-24gb") && notes[0].contains("a100-40gb"), "{notes:?}");
    }

    #[test]
    fn times_for_any_gpu_are_noted_as_equal_on_all_of_them() {
        let named = miso::job("mobilenet_train64", 100).unwrap();
        let times = named.times[miso::MODEL].clone();
        let any =
            SimulatedJob { times: BTreeMap::from([("*".to_owned(), times)]), ..named.clone() };

        assert_eq!(anywhere(std::slice::from_ref(&named), &[miso::MODEL]), None);
        let text = anywhere(&[named, any], &["a30-24gb", "h100-80gb-sxm"]).unwrap();
        assert!(text.starts_with("1 of 2 jobs"), "{text}");
        assert!(text.contains("as fast on a30-24gb and h100-80gb-sxm as"), "{text}");
    }

    #[test]
    fn a_larger_gpu_is_no_faster_than_all_that_was_measured_and_no_size_is_faster_than_a_larger_one()
     {
        for model in catalog::models().keys() {
            let mut jobs = vec![miso::job("resnet_train128", 100).unwrap()];
            let fastest = jobs[0].fastest(&[miso::MODEL]);
            fill(&mut jobs, &[model.as_str()]);
            let Some(times) = jobs[0].times_on(model) else {
                assert_eq!(multiprocessors(model), None, "{model}: no source states any");
                continue;
            };
            let times: Vec<u64> = times.values().copied().collect();
            assert!(times.windows(2).all(|pair| pair[0] >= pair[1]), "{model}: {times:?}");
            assert!(times.iter().copied().min() >= fastest, "{model}: {times:?}");
        }
    }
}
