//! Which devices a process sees.

use tessera_stand_in::config::StandInConfig;
use tessera_stand_in::cuda::visible::devices;
use tessera_stand_in::node::SimulatedNode;

use crate::rig::Rig;

#[test]
fn devices_are_named_by_index_uuid_or_its_beginning_up_to_the_first_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let config = StandInConfig {
        mig: false,
        ..StandInConfig::new(folder.path(), &["a30-24gb", "a100-40gb"])
    };
    let state = SimulatedNode::open(&config).unwrap().read().unwrap();
    let uuids = [state.gpu_uuid(0), state.gpu_uuid(1)];
    let seen = |variable: Option<&str>| -> Vec<usize> {
        devices(&state, variable).iter().map(|device| device.gpu).collect()
    };
    assert_eq!(seen(None), [0, 1]);
    assert_eq!(seen(Some("")), [0_usize; 0]);
    assert_eq!(seen(Some("1,0")), [1, 0]);
    assert_eq!(seen(Some("1,7,0")), [1], "what follows a mistake is not seen");
    assert_eq!(seen(Some("0,0")), [0_usize; 0], "twice the same is a mistake");
    assert_eq!(seen(Some(&uuids[1])), [1]);
    assert_eq!(seen(Some(&uuids[1][..12])), [1]);
    assert_eq!(seen(Some("GPU-")), [0_usize; 0]);
    assert_eq!(seen(Some("MIG-00000000-0000-0000-0000-000000000000")), [0_usize; 0]);
}

#[test]
fn a_process_sees_one_mig_device_with_its_memory_and_its_part_of_the_sms() {
    let folder = tempfile::tempdir().unwrap();
    let node = SimulatedNode::open(&StandInConfig::new(folder.path(), &["a100-40gb"])).unwrap();
    assert!(devices(&node.read().unwrap(), None).is_empty(), "nothing stands on the GPU yet");
    let uuids: Vec<_> = (0..2)
        .map(|_| {
            node.change(|state| {
                let gpu = &state.gpus[0];
                let profile = gpu.model().profiles.iter();
                let profile = profile.filter(|p| p.profile.name.as_str() == "1g.5gb");
                let mut profile = profile.map(|p| (p.profile.id.0, p.compute[0].id.unwrap()));
                let (profile, compute) = profile.next_back().unwrap();
                let instance = state.create_gpu_instance(0, profile, None).unwrap();
                let compute = state.create_compute_instance(instance, compute, None).unwrap();
                state.compute_instance(compute).unwrap().2.mig_uuid()
            })
            .unwrap()
        })
        .collect();
    let state = node.read().unwrap();
    let all = devices(&state, Some(&uuids.join(",")));
    let [seen] = &all[..] else { panic!("{all:?}") };
    assert_eq!(seen.text, uuids[0]);
    assert_eq!(seen.name, "NVIDIA A100-SXM4-40GB MIG 1g.5gb");
    assert_eq!(seen.sms, 14);
    assert_eq!(seen.share, (14 * 1_000 / 108, 125));
    assert!(seen.memory_bytes < 5 << 30);
    assert_eq!(devices(&state, None)[0].text, uuids[0]);
    assert_ne!(seen.uuid, seen.gpu_uuid);
}

#[test]
fn no_visible_device_is_no_device() {
    let variables = [("CUDA_VISIBLE_DEVICES", "MIG-00000000-0000-0000-0000-000000000000")];
    let rig = Rig::uninitialized(&variables);
    assert_eq!(rig.init(&variables).unwrap_err().code(), Some(100));
}
