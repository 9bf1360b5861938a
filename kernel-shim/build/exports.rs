//! Generates the code of the export table: a slot for each function of the driver, a stub for each
//! function without a hook, and the revisions for `cuGetProcAddress`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

struct ExportRow<'a> {
    name: &'a str,
    version: &'a str,
    twin: &'a str,
    symbol: &'a str,
    hook: bool,
}

pub fn generate(table: &Path, out: &Path) {
    let text = fs::read_to_string(table).expect("the table of symbols is next to build.rs");
    let rows: Vec<ExportRow> =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| row(line)).collect();
    fs::write(out, render(&rows)).expect("cargo made OUT_DIR");
}

fn row(line: &str) -> ExportRow<'_> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [name, version, twin, symbol, class] = fields[..] else {
        panic!("expected a row of five fields, not {line:?}");
    };
    assert!(["pass", "hook"].contains(&class), "{symbol}: no such class: {class}");
    ExportRow { name, version, twin, symbol, hook: class == "hook" }
}

fn render(rows: &[ExportRow]) -> String {
    let mut code = String::new();
    let count = rows.len();
    let _ = writeln!(code, "/// How many functions the driver has, of any version.");
    let _ = writeln!(code, "pub const SLOTS: usize = {count};");
    let _ = writeln!(code, "pub static NAMES: [&::core::ffi::CStr; SLOTS] = [");
    for row in rows {
        let _ = writeln!(code, "    c\"{}\",", row.symbol);
    }
    let _ = writeln!(code, "];\npub static TABLE: [AtomicPtr<()>; SLOTS] = [");
    for slot in 0..count {
        // A function's address may be stored in a constant only by a cast.
        let _ = writeln!(code, "    AtomicPtr::new(cold_{slot} as *mut ()),");
    }
    let _ = writeln!(code, "];");
    for (slot, row) in rows.iter().enumerate() {
        let _ = writeln!(
            code,
            "#[unsafe(naked)]\nunsafe extern \"C\" fn cold_{slot}() {{\n    \
             naked_asm!(\"mov r11d, {slot}\", \"jmp {{find}}\", find = sym find_and_jump)\n}}"
        );
        if !row.hook {
            let _ = writeln!(
                code,
                "#[unsafe(no_mangle)]\n#[unsafe(naked)]\nunsafe extern \"C\" fn {}() {{\n    \
                 naked_asm!(\"jmp qword ptr [rip + {{table}} + {}]\", table = sym TABLE)\n}}",
                row.symbol,
                slot * 8
            );
        }
    }
    let _ = writeln!(code, "/// The slots of the functions that are hooked or called by the shim.");
    let _ = writeln!(code, "#[allow(dead_code)]\npub mod slot {{");
    for (slot, row) in rows.iter().enumerate() {
        let _ = writeln!(code, "    pub const {}: usize = {slot};", row.symbol);
    }
    let _ = writeln!(code, "}}");
    // A name with a hook needs all its revisions, since the best one may have no hook.
    let hooked: BTreeSet<&str> = rows.iter().filter(|row| row.hook).map(|row| row.name).collect();
    let _ = writeln!(
        code,
        "pub fn rows() -> &'static [ExportRow] {{\n    static ROWS: &[ExportRow] = &["
    );
    for (slot, row) in rows.iter().enumerate().filter(|(_, row)| hooked.contains(row.name)) {
        let hook = if row.hook {
            format!("Some(Hook(crate::hooks::{} as *const ()))", row.symbol)
        } else {
            "None".to_owned()
        };
        let _ = writeln!(
            code,
            "        ExportRow {{ name: \"{}\", version: {}, twin: {}, symbol: \"{}\", slot: {slot}, hook: {hook} }},",
            row.name,
            row.version,
            row.twin != "-",
            row.symbol,
        );
    }
    let _ = writeln!(code, "    ];\n    ROWS\n}}");
    code
}
