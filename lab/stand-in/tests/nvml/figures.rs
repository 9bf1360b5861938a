//! The power of GPUs, and the processes that keep them busy.

use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::nvmlProcessUtilizationSample_t;
use tessera_stand_in::client::DeviceClient;

use crate::clients::Holder;
use crate::rig::{Rig, raw};

const ENTRIES_MAX: usize = 8;

/// Reads which processes keep a GPU busy: the call's code, and pid with percent.
fn loads(rig: &Rig, since: u64) -> (u32, Vec<(u32, u32)>) {
    let empty = nvmlProcessUtilizationSample_t {
        pid: 0,
        timeStamp: 0,
        smUtil: 0,
        memUtil: 0,
        encUtil: 0,
        decUtil: 0,
    };
    let mut samples = [empty; ENTRIES_MAX];
    let mut count = u32::try_from(ENTRIES_MAX).unwrap();
    let list = samples.as_mut_ptr();
    let code = raw!(rig, nvmlDeviceGetProcessUtilization(rig.device(0), list, &mut count, since));
    let found = samples.iter().take(usize::try_from(count).unwrap());
    (code, found.map(|sample| (sample.pid, sample.smUtil)).collect())
}

#[test]
fn sharers_of_a_gpu_are_told_apart_and_never_keep_it_more_than_busy() {
    let rig = Rig::with(&["a100-40gb"], &[("TESSERA_SIM_MIG", "off")]);
    let gpu = rig.nvml.device_by_index(0).unwrap();
    assert_eq!(loads(&rig, 0), (6, Vec::new()), "nobody is busy");
    let uuid = gpu.uuid().unwrap();
    let client = DeviceClient::open(&rig.node, &uuid).unwrap();
    client.set_load(30).unwrap();
    let (holder, _) = Holder::start(&rig, &uuid, &["--load-percent", "90"]);

    let (code, mut found) = loads(&rig, 0);

    found.sort_unstable_by_key(|(_, load)| *load);
    assert_eq!(code, 0);
    assert_eq!(found, [(std::process::id(), 25), (holder.pid(), 75)]);
    assert_eq!(loads(&rig, u64::MAX).0, 6, "nothing is newer than the end of time");
}

#[test]
fn with_mig_on_no_process_is_told_apart_and_no_utilisation_is_told() {
    let rig = Rig::new(&["a100-40gb"]);
    let slice = rig.slice(0, "3g.20gb");
    let client = DeviceClient::open(&rig.node, &slice.uuid).unwrap();
    client.set_load(100).unwrap();

    assert_eq!(loads(&rig, 0).0, 3);
    assert!(rig.nvml.device_by_index(0).unwrap().utilization_rates().is_err());
}

#[test]
fn the_energy_counter_is_the_integral_of_the_power() {
    let rig = Rig::new(&["a30-24gb"]);
    let gpu = rig.nvml.device_by_index(0).unwrap();
    let slice = rig.slice(0, "2g.12gb");
    let client = DeviceClient::open(&rig.node, &slice.uuid).unwrap();
    let mut expected_at_least = 0;
    let mut expected_at_most = 0;
    let whole = |span: Duration| u64::try_from(span.as_millis()).unwrap();
    let first = gpu.total_energy_consumption().unwrap();
    let begun = Instant::now();
    let mut last = first;

    for load in [100, 0, 50] {
        let changing = Instant::now();
        client.set_load(load).unwrap();
        let watt = u64::from(gpu.power_usage().unwrap()) / 1_000;
        assert_eq!(watt, 32 + 34 * u64::from(load) / 100);
        let steady = Instant::now();
        while steady.elapsed() < Duration::from_millis(60) {
            let now = gpu.total_energy_consumption().unwrap();
            assert!(now >= last, "it ran backwards");
            last = now;
        }
        expected_at_least += watt * whole(steady.elapsed());
        // While the load is being changed the power lies between the least and the most.
        expected_at_most += watt * whole(steady.elapsed()) + 66 * whole(steady - changing);
    }

    let counted = last - first;
    // Each moment is read to the millisecond, on either side.
    let slack = 66 * 2 * 4;
    assert!(counted + slack >= expected_at_least, "{counted} mJ, at least {expected_at_least}");
    assert!(counted <= expected_at_most + slack, "{counted} mJ, at most {expected_at_most}");
    assert!(whole(begun.elapsed()) * 32 <= counted + slack, "less than an idle card");
}
