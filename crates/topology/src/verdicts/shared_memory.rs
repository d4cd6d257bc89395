//! Too little shared memory in a container.

use super::{Severity, Verdict, evidence};
use crate::machine::Machine;

/// What NCCL and vLLM want at least for a handful of processes.
const ENOUGH: u64 = 1 << 30;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let bytes = machine.host.shm_bytes.filter(|b| *b < ENOUGH)?;
    if machine.len() < 2 {
        return None;
    }
    let container = machine.host.container == Some(true);
    Some(Verdict {
        rule: "shared-memory",
        severity: Severity::Warning,
        title: format!("/dev/shm has {} MiB", bytes >> 20),
        evidence: vec![evidence(machine, format!("{} MiB{}", bytes >> 20, if container { ", in a container" } else { "" }), &["shm"])],
        reason: "Servers with one process for each GPU exchange messages through it, and NCCL's way through host memory lies in it: too \
                 little ends in `unhandled system error` or a bus error. A container gets 64 MiB unless told otherwise. tombolo is one \
                 process and needs none."
            .into(),
        fix: vec!["`docker run --ipc=host …` or `--shm-size=16g`; in Kubernetes an `emptyDir` with `medium: Memory` at `/dev/shm`".into()],
    })
}
