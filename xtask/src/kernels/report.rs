//! What `ptxas -v` says of every kernel entry: registers, shared memory, stack, spills.

use serde::{Deserialize, Serialize};

/// One kernel entry for one architecture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) entry: String,
    /// As `sm_90a`.
    pub(super) arch: String,
    pub(super) registers: u64,
    /// Static shared memory.
    pub(super) shared_bytes: u64,
    pub(super) stack_bytes: u64,
    pub(super) spill_store_bytes: u64,
    pub(super) spill_load_bytes: u64,
}

/// Reads the compiler's output. Device functions that are not entries are skipped: their stack is in their caller's.
pub(super) fn parse(text: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut current: Option<Entry> = None;
    let mut own_properties = false;
    for line in text.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let mut parts = rest.split('\'');
            let entry = parts.next().unwrap_or_default().to_string();
            let arch = parts.nth(1).unwrap_or_default().to_string();
            current = Some(Entry { entry, arch, ..Entry::default() });
        } else if let Some(name) = line.split("Function properties for ").nth(1) {
            own_properties = current.as_ref().is_some_and(|e| e.entry == name.trim());
        } else if let Some(entry) = current.as_mut() {
            if line.contains("bytes stack frame") && own_properties {
                entry.stack_bytes = before(line, "bytes stack frame");
                entry.spill_store_bytes = before(line, "bytes spill stores");
                entry.spill_load_bytes = before(line, "bytes spill loads");
            } else if line.contains(": Used ") {
                entry.registers = before(line, "registers");
                entry.shared_bytes = before(line, "bytes smem");
                entries.extend(current.take());
            }
        }
    }
    entries
}

/// The number before `what`, 0 where it is not said.
fn before(line: &str, what: &str) -> u64 {
    let Some(at) = line.find(what) else { return 0 };
    line[..at].split_whitespace().next_back().and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read() {
        let text = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'gemv' for 'sm_90a'
ptxas info    : Function properties for helper
    64 bytes stack frame, 32 bytes spill stores, 32 bytes spill loads
ptxas info    : Function properties for gemv
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 8 bytes cumulative stack size, 2048 bytes smem, 16 bytes cmem[4]
ptxas info    : Compile time = 4.2 ms
ptxas info    : Compiling entry function 'norm' for 'sm_80'
ptxas info    : Function properties for norm
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers, 376 bytes cmem[0]
";
        let entries = parse(text);
        assert_eq!(entries.len(), 2);
        let gemv = Entry {
            entry: "gemv".into(),
            arch: "sm_90a".into(),
            registers: 40,
            shared_bytes: 2048,
            stack_bytes: 8,
            spill_store_bytes: 4,
            spill_load_bytes: 12,
        };
        assert_eq!(entries[0], gemv);
        let norm = Entry { entry: "norm".into(), arch: "sm_80".into(), registers: 12, ..Entry::default() };
        assert_eq!(entries[1], norm);
    }
}
