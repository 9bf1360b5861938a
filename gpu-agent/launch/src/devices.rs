//! A filter on a control group (version 2) that denies access to other jobs' GPUs. It is a few instructions
//! of eBPF, written without a library.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use crate::order::DeviceRules;
use crate::sys::check;

const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
const ALLOW_MULTI: u32 = 2;
const REPLACE: u32 = 4;
/// Maximum number of rules in a filter; kernels accept 4096 instructions.
const RULES_MAX: usize = 500;

/// One instruction of eBPF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    value: i32,
}

const fn instruction(code: u8, registers: u8, offset: i16, value: u32) -> Instruction {
    Instruction { code, registers, offset, value: value.cast_signed() }
}

/// Loads a word of the context (register 1) into a register: its kind, its major or its minor number.
const fn load(register: u8, offset: i16) -> Instruction {
    instruction(0x61, 0x10 | register, offset, 0)
}

/// Jumps over so many instructions if the register is not the value.
const fn jump_unless(register: u8, value: u32, over: i16) -> Instruction {
    instruction(0x55, register, over, value)
}

/// Ends with this answer: 1 for open, 0 for closed.
const fn answer(value: u32) -> [Instruction; 2] {
    [instruction(0xb7, 0, 0, value), instruction(0x95, 0, 0, 0)]
}

/// Returns the filter's program. It allows what is in `open`, denies other devices of guarded drivers, and
/// leaves all others to their permissions.
///
/// # Errors
///
/// There are more rules than a filter may have.
pub fn program(rules: &DeviceRules) -> io::Result<Vec<Instruction>> {
    if rules.open.len() + rules.guarded.len() > RULES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many devices for a filter"));
    }
    // The context: access and kind, major, minor. Only character devices are guarded.
    let mut code = vec![load(2, 0), load(3, 4), load(4, 8)];
    code.push(instruction(0x57, 2, 0, 0xffff));
    code.push(jump_unless(2, 2, 1));
    code.push(instruction(0x05, 0, 2, 0));
    code.extend(answer(1));
    for device in &rules.open {
        code.push(jump_unless(3, device.major, 3));
        code.push(jump_unless(4, device.minor, 2));
        code.extend(answer(1));
    }
    for major in &rules.guarded {
        code.push(jump_unless(3, *major, 2));
        code.extend(answer(0));
    }
    code.extend(answer(1));
    Ok(code)
}

#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    version: u32,
    flags: u32,
}

#[repr(C)]
struct Attach {
    target: RawFd,
    program: RawFd,
    kind: u32,
    flags: u32,
    replaced: RawFd,
}

fn bpf<T>(command: libc::c_int, arguments: &T) -> io::Result<i64> {
    // SAFETY: the structure and all that it refers to outlive the call, and its size is given.
    check(unsafe { libc::syscall(libc::SYS_bpf, command, arguments as *const T, size_of::<T>()) })
}

/// A loaded filter, with its rules.
#[derive(Debug)]
pub struct Filter {
    rules: DeviceRules,
    program: OwnedFd,
}

impl Filter {
    /// Loads a filter.
    ///
    /// # Errors
    ///
    /// The kernel refuses: it requires `CAP_BPF` and `CAP_NET_ADMIN`, or `CAP_SYS_ADMIN`.
    pub fn load(rules: &DeviceRules) -> io::Result<Self> {
        let code = program(rules)?;
        let load = Load {
            kind: PROG_TYPE_CGROUP_DEVICE,
            count: u32::try_from(code.len()).unwrap_or(u32::MAX),
            instructions: code.as_ptr().addr() as u64,
            license: c"Apache-2.0".as_ptr().addr() as u64,
            log_level: 0,
            log_size: 0,
            log: 0,
            version: 0,
            flags: 0,
        };
        let number = bpf(PROG_LOAD, &load)?;
        #[expect(clippy::cast_possible_truncation, reason = "descriptors are small numbers")]
        // SAFETY: the descriptor is new and nobody else's.
        let program = unsafe { OwnedFd::from_raw_fd(number as RawFd) };
        Ok(Self { rules: rules.clone(), program })
    }

    /// Returns whether it was made of these rules.
    pub fn is_of(&self, rules: &DeviceRules) -> bool {
        self.rules == *rules
    }

    /// Attaches the filter to a group, in place of an earlier one of ours.
    ///
    /// # Errors
    ///
    /// The kernel refuses, or the descriptor is not that of a control group of version 2.
    pub fn attach(&self, group: BorrowedFd<'_>, replaced: Option<&Self>) -> io::Result<()> {
        let attach = Attach {
            target: group.as_raw_fd(),
            program: self.program.as_raw_fd(),
            kind: ATTACH_CGROUP_DEVICE,
            flags: ALLOW_MULTI | if replaced.is_some() { REPLACE } else { 0 },
            replaced: replaced.map_or(0, |filter| filter.program.as_raw_fd()),
        };
        bpf(PROG_ATTACH, &attach).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::DeviceNumber;

    /// Runs a program as the kernel would, with the instructions that are used here.
    fn run(code: &[Instruction], kind: u32, major: u32, minor: u32) -> u32 {
        let context = [kind, major, minor];
        let mut registers = [0_u32; 11];
        let mut at = 0_usize;
        loop {
            let now = code[at];
            let register = usize::from(now.registers & 0xf);
            at += 1;
            match now.code {
                0x61 => registers[register] = context[usize::try_from(now.offset / 4).unwrap()],
                0x57 => registers[register] &= now.value.cast_unsigned(),
                0xb7 => registers[register] = now.value.cast_unsigned(),
                0x05 => at += usize::try_from(now.offset).unwrap(),
                0x55 if registers[register] != now.value.cast_unsigned() => {
                    at += usize::try_from(now.offset).unwrap();
                }
                0x55 => {}
                0x95 => return registers[0],
                code => panic!("no such instruction: {code:#x}"),
            }
        }
    }

    #[test]
    fn own_devices_are_open_others_of_their_drivers_are_closed_and_the_rest_is_left_alone() {
        let open = [(195, 255), (195, 0), (500, 0), (237, 12)]
            .map(|(major, minor)| DeviceNumber { major, minor });
        let rules = DeviceRules { guarded: vec![195, 237], open: open.into() };
        let code = program(&rules).unwrap();
        // The upper half has the kind of access.
        for access in [1 << 16, 2 << 16, 6 << 16] {
            for (major, minor, expected) in [
                (195, 255, 1),
                (195, 0, 1),
                (195, 1, 0),
                (237, 12, 1),
                (237, 13, 0),
                (500, 1, 1),
                (1, 3, 1),
            ] {
                assert_eq!(run(&code, access | 2, major, minor), expected, "{major}:{minor}");
                assert_eq!(run(&code, access | 1, major, minor), 1, "a disk {major}:{minor}");
            }
        }
    }
}
