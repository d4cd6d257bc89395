//! A limit on memory that a process may lock.

use super::{Severity, Verdict, evidence};
use crate::machine::Machine;

/// A limit below this is the distribution's and not one that was chosen for models.
const SMALL: u64 = 1 << 30;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let bytes = machine.host.memlock_bytes.filter(|b| *b < SMALL)?;
    Some(Verdict {
        rule: "memlock",
        severity: Severity::Note,
        title: format!("a process may lock {} MiB of memory", bytes >> 20),
        evidence: vec![evidence(machine, format!("RLIMIT_MEMLOCK is {} KiB", bytes >> 10), &["memlock"])],
        reason: "Buffers that CUDA pins are not counted in it. `--mlock` of llama.cpp, RDMA adapters and io_uring are, and fail beyond \
                 it."
            .into(),
        fix: vec!["`ulimit -l unlimited`; for services `LimitMEMLOCK=infinity`, in containers `--ulimit memlock=-1`".into()],
    })
}
