//! The all-reduce of this machine, tried: `tombolo bench collective` in a child process with a deadline, because broken
//! peer access can hang a process for good. What it says can only veto.

use crate::child::{self, Ended};
use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};
use std::time::Duration;
use tombolo_topology::{Discovery, Gpu, Machine, MeasuredAllReduce, P2pTest, Pairs, discover};

/// Both transports at one size take a second or two; drivers that start from nothing take longer.
const DEADLINE: Duration = Duration::from_secs(60);
/// A token in bfloat16, of a small model and of GLM-5; one sequence, and eight.
const SIZES: [&str; 4] = ["--bytes", "2048,12288", "--rows", "1,8"];

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct SelfCheck {
    /// Rows of the table, by transport.
    pub(crate) rows: Vec<Row>,
    /// Why a transport, or everything, could not be tried.
    pub(crate) remarks: Vec<String>,
    /// Whether something that was tried gave wrong data, or did not come back.
    pub(crate) broken: bool,
}

/// One measured form.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) transport: String,
    pub(crate) what: String,
    pub(crate) bytes: usize,
    pub(crate) ranks: usize,
    /// Microseconds a call.
    pub(crate) us: f64,
    /// Values that differ from the host's sum.
    pub(crate) wrong: usize,
}

impl Row {
    /// As a machine keeps it.
    pub(crate) fn measured(&self) -> MeasuredAllReduce {
        let Self { transport, what, bytes, ranks, us, wrong: _ } = self.clone();
        MeasuredAllReduce { transport, what, bytes: bytes as u64, ranks, us }
    }
}

#[derive(Deserialize)]
struct Report {
    results: Vec<Row>,
    remarks: Vec<String>,
}

/// This machine, with what CUDA knows of its cards, and where `measures` says so and there are several what their
/// all-reduce does.
pub(crate) fn this_machine(measures: bool) -> (Discovery, Option<SelfCheck>) {
    let mut found = discover();
    attributes(&mut found.machine);
    let measures = measures && found.machine.len() > 1;
    let check = measures.then(|| check(&mut found.machine));
    (found, check)
}

/// What CUDA knows of the cards beside the driver's library.
fn attributes(machine: &mut Machine) {
    for info in tombolo_cuda::attributes() {
        // Both are addresses on the bus, with more or fewer zeros before the domain.
        let at = |id: &str| id.to_ascii_lowercase().trim_start_matches('0').to_string();
        let same = |gpu: &&mut Gpu| gpu.pci_bus_id.as_deref().map(at) == Some(at(&info.pci));
        if let Some(gpu) = machine.gpus.iter_mut().find(same) {
            gpu.multicast = Some(info.multicast);
            let key = format!("multicast[{}]", gpu.index);
            machine.origin.insert(key, "CUDA's attributes".into());
        }
    }
}

/// Tries it over all GPUs, and over fewer as smaller placements would, and puts into the machine what it proves.
fn check(machine: &mut Machine) -> SelfCheck {
    let gpus = machine.len();
    let mut check = SelfCheck::default();
    // All of them first: where that does not come back, nothing else is tried.
    for ranks in [gpus].into_iter().chain([2, 4].into_iter().filter(|&ranks| ranks < gpus)) {
        match try_it(ranks) {
            Ok(report) => {
                check.broken |= report.results.iter().any(|row| row.wrong > 0);
                check.rows.extend(report.results);
                check.remarks.extend(report.remarks);
            }
            Err(Trouble::Hung) => {
                check.remarks.push(format!("it did not come back within {} s and was ended", DEADLINE.as_secs()));
                check.broken = true;
            }
            Err(Trouble::Failed(why)) => check.remarks.push(why),
        }
        if check.broken || check.rows.is_empty() {
            break;
        }
    }
    check.remarks.dedup();
    keep(machine, &check);
    check
}

/// Every rank stores to every other: right sums prove each way between GPUs that took part.
fn keep(machine: &mut Machine, check: &SelfCheck) {
    let gpus = machine.len();
    let peer: Vec<&Row> = check.rows.iter().filter(|row| row.transport == "peer" && row.ranks == gpus).collect();
    if !peer.is_empty() && peer.iter().all(|row| row.wrong == 0) {
        machine.p2p.tested = Some(Pairs::from_fn(gpus, |a, b| (a != b).then_some(P2pTest::Right)));
        machine.origin.insert("p2p.tested".into(), "tombolo's own all-reduce, just now".into());
    }
    machine.all_reduce = check.rows.iter().filter(|row| row.wrong == 0).map(Row::measured).collect();
}

enum Trouble {
    Hung,
    Failed(String),
}

fn try_it(ranks: usize) -> Result<Report, Trouble> {
    let failed = |error: &dyn std::fmt::Display| Trouble::Failed(error.to_string());
    let me = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut command = Command::new(me);
    let devices = (0..ranks).map(|gpu| gpu.to_string()).collect::<Vec<_>>().join(",");
    command.args(["bench", "collective", "--json", "--repetitions", "3"]).args(SIZES).stdin(Stdio::null());
    // Counted as the driver's library counts them, not the fastest first.
    command.args(["--device", &format!("cuda:{devices}")]).env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    let (out, complaint) = match child::run(&mut command, DEADLINE).map_err(|error| failed(&error))? {
        Ended::Itself { out, complaint, .. } => (out, complaint),
        // A process that hangs in the driver may outlive even being killed; nobody waits for it.
        Ended::Killed(_) => return Err(Trouble::Hung),
    };
    serde_json::from_str(&out).map_err(|_| {
        let why = complaint.lines().last().unwrap_or("it ended without an answer").trim_start_matches("error: ");
        Trouble::Failed(why.to_string())
    })
}
