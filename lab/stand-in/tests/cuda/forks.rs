//! Forks: a child has no driver, whatever its parent had.

use tessera_stand_in::cuda_call;

use crate::rig::Rig;

#[test]
fn the_fork_of_a_process_with_a_driver_has_none() {
    let rig = Rig::with(&[]);
    // SAFETY: the types of these functions; found before the fork, called after it.
    let (count, init) = unsafe {
        (
            rig.cuda.function::<unsafe extern "C" fn(*mut i32) -> i32>("cuDeviceGetCount\0"),
            rig.cuda.function::<unsafe extern "C" fn(u32) -> i32>("cuInit\0"),
        )
    };
    let (count, init) = (count.unwrap(), init.unwrap());
    // SAFETY: the child only calls two functions that take no lock there, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut devices = 0;
        // SAFETY: as above.
        let codes = unsafe { (count(&mut devices), init(0)) };
        // SAFETY: no destructor of the parent's runs in its copy.
        unsafe { libc::_exit(if codes == (3, 3) { 0 } else { 1 }) };
    }
    assert!(child > 0);
    let mut status = -1;
    // SAFETY: the child just made.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0, "both said 3, not initialised");

    let mut devices = 0;
    cuda_call!(rig.cuda, cuDeviceGetCount(&mut devices => *mut i32)).unwrap();
    assert_eq!(devices, 1, "the parent's goes on");
}
