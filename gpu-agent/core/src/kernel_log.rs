//! Parses the driver's errors in the kernel log, one record of `/dev/kmsg` at a time. Pure.
//!
//! A record is `priority,sequence,microseconds,flags;message`. The driver writes
//! `NVRM: Xid (PCI:0000:65:00 GPU-I:05 GPU-CI:00): 31, pid=77, name=python3, Ch 00000008, …`.
//! The instances are missing on a GPU without MIG, and the process if it is unknown.

/// One record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord<'l> {
    /// The sequence number, which rises with each record of a boot.
    pub sequence: u64,
    /// When it was written, in microseconds of the monotonic clock.
    pub micros: u64,
    /// The message without its header.
    pub message: &'l str,
}

/// One error of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedXid {
    /// The bus address of the GPU: `0000:65:00`.
    pub bus: String,
    /// The error's number.
    pub xid: u32,
    /// The affected GPU instance, if known.
    pub instance: Option<u32>,
    /// The affected process, if known.
    pub pid: Option<u32>,
}

/// Parses a record; `None` if it has another form.
pub fn record(text: &str) -> Option<LogRecord<'_>> {
    let (head, rest) = text.split_once(';')?;
    let mut fields = head.split(',');
    // Facility and level: records that programs write have another facility than 0.
    fields.next()?.parse().ok().filter(|priority: &u32| *priority < 8)?;
    let sequence = fields.next()?.parse().ok()?;
    let micros = fields.next()?.parse().ok()?;
    // Lines after the first are keys and values of the device and not of the message.
    Some(LogRecord { sequence, micros, message: rest.lines().next().unwrap_or_default() })
}

/// Finds an error of a GPU in a message.
pub fn xid(message: &str) -> Option<LoggedXid> {
    let rest = message.trim_start().strip_prefix("NVRM: Xid (PCI:")?;
    let (place, rest) = rest.split_once("): ")?;
    let mut place = place.split(' ');
    let bus = place.next().filter(|bus| is_bus(bus))?.to_ascii_lowercase();
    let instance = place.find_map(|word| word.strip_prefix("GPU-I:")?.parse().ok());
    let mut parts = rest.split(", ");
    let number = parts.next()?.trim_end_matches(',');
    let pid =
        parts.next().and_then(|part| part.strip_prefix("pid=")?.trim_matches('\'').parse().ok());
    Some(LoggedXid { bus, xid: number.parse().ok()?, instance, pid })
}

/// Returns whether a text has the form `0000:65:00`.
fn is_bus(text: &str) -> bool {
    let parts: Vec<_> = text.split(':').collect();
    let lengths: Vec<_> = parts.iter().map(|part| part.len()).collect();
    lengths == [4, 2, 2] && parts.iter().all(|part| part.chars().all(|c| c.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(message: &str) -> Option<(String, u32, Option<u32>, Option<u32>)> {
        xid(message).map(|x| (x.bus, x.xid, x.instance, x.pid))
    }

    fn expect(
        bus: &str,
        xid: u32,
        instance: Option<u32>,
        pid: Option<u32>,
    ) -> Option<(String, u32, Option<u32>, Option<u32>)> {
        Some((bus.to_owned(), xid, instance, pid))
    }

    #[test]
    fn messages_of_real_machines_are_understood() {
        for (message, expected) in [
            (
                "NVRM: Xid (PCI:0000:00:07): 31, pid=2512125, name=python3.10, Ch 00000008, intr \
                 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_8 faulted @ 0x73ac_1c000000. \
                 Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE",
                expect("0000:00:07", 31, None, Some(2_512_125)),
            ),
            (
                "NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM \
                 Warp Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction Parameter",
                expect("0000:cb:00", 13, None, None),
            ),
            (
                "NVRM: Xid (PCI:0000:cb:00): 109, pid=1797828, name=pt_main_thread, Ch 00000008, \
                 errorString CTX SWITCH TIMEOUT, Info 0x58005",
                expect("0000:cb:00", 109, None, Some(1_797_828)),
            ),
            (
                "NVRM: Xid (PCI:0000:00:08): 94, pid='<unknown>', name=<unknown>, Contained: SM \
                 (0x1). RST: No, D-RST: No",
                expect("0000:00:08", 94, None, None),
            ),
            (
                "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus.",
                expect("0000:44:00", 79, None, None),
            ),
            (
                "NVRM: Xid (PCI:0000:00:05): 43, pid=1045242, name=pt_main_thread, Ch 00000008",
                expect("0000:00:05", 43, None, Some(1_045_242)),
            ),
            (
                "NVRM: Xid (PCI:0009:01:00): 43, pid=3188489, name=trigger_xid, channel 0x0b00000a",
                expect("0009:01:00", 43, None, Some(3_188_489)),
            ),
            (
                "NVRM: Xid (PCI:0000:65:00 GPU-I:05 GPU-CI:00): 31, pid=77, name=python3, Ch 0",
                expect("0000:65:00", 31, Some(5), Some(77)),
            ),
            (
                "NVRM: Xid (PCI:0000:65:00 GPU-I:11): 94, pid=77, name=a, b, Contained",
                expect("0000:65:00", 94, Some(11), Some(77)),
            ),
            (
                "NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406)",
                expect("0019:01:00", 149, None, None),
            ),
        ] {
            assert_eq!(found(message), expected, "{message}");
        }
    }

    #[test]
    fn other_messages_are_none() {
        for message in [
            "NVRM: GPU at PCI:0000:00:07: GPU-efbdfde9-5798-a6e7-4c46-12518fa15375",
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.183.01",
            "NVRM: Xid (PCI:0000:00): 31, pid=1",
            "NVRM: Xid (PCI:0000:00:07): many",
            "user program: NVRM: Xid (PCI:0000:00:07): 79, GPU has fallen off the bus.",
            "",
        ] {
            assert_eq!(found(message), None, "{message}");
        }
    }

    #[test]
    fn a_record_has_its_sequence_its_time_and_its_first_line() {
        let text = "6,339,5140900,-;NVRM: x; y\n SUBSYSTEM=pci\n DEVICE=+pci:0000:65:00.0\n";

        let found = record(text).unwrap();

        assert_eq!((found.sequence, found.micros, found.message), (339, 5_140_900, "NVRM: x; y"));
        assert_eq!(record("14,339,5140900,-;NVRM: x"), None, "a program wrote it");
        assert_eq!(record("no record"), None);
        assert_eq!(record("a,b,c;d"), None);
    }

    proptest! {
        #[test]
        fn no_text_is_a_panic(text in "\\PC{0,80}", tail in "[(): ,0-9a-fGPU=I-]{0,40}") {
            record(&text);
            xid(&text);
            xid(&format!("NVRM: Xid (PCI:{tail}"));
        }
    }
}
