//! The all-reduce of this machine, tried: `tombolo bench collective` in a child process with a deadline, because broken
//! peer access can hang a process for good. What it says can only veto.

use crate::child::{self, Ended};
use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};
use std::time::Duration;
use tombolo_topology::{Machine, P2pTest, Pairs};

/// Both transports at one size take a second or two; drivers that start from nothing take longer.
const DEADLINE: Duration = Duration::from_secs(60);
/// A token of GLM-5, in bfloat16.
const BYTES: &str = "12288";

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct SelfCheck {
    /// Rows of the table, by transport.
    pub(super) rows: Vec<Row>,
    /// Why a transport, or everything, could not be tried.
    pub(super) remarks: Vec<String>,
    /// Whether something that was tried gave wrong data, or did not come back.
    pub(super) broken: bool,
}

/// One measured form.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) transport: String,
    pub(super) what: String,
    pub(super) bytes: usize,
    pub(super) ranks: usize,
    /// Microseconds a call.
    pub(super) us: f64,
    /// Values that differ from the host's sum.
    pub(super) wrong: usize,
}

#[derive(Deserialize)]
struct Report {
    results: Vec<Row>,
    remarks: Vec<String>,
}

/// Tries it, and puts into the machine what it proves.
pub(super) fn check(machine: &mut Machine) -> SelfCheck {
    let check = match try_it() {
        Ok(report) => {
            let broken = report.results.iter().any(|row| row.wrong > 0);
            SelfCheck { rows: report.results, remarks: report.remarks, broken }
        }
        Err(Trouble::Hung) => {
            let remark = format!("it did not come back within {} s and was ended", DEADLINE.as_secs());
            SelfCheck { remarks: vec![remark], broken: true, ..SelfCheck::default() }
        }
        Err(Trouble::Failed(why)) => SelfCheck { remarks: vec![why], ..SelfCheck::default() },
    };
    // Every rank stores to every other: right sums prove each way between GPUs that took part.
    let peer: Vec<&Row> = check.rows.iter().filter(|row| row.transport == "peer").collect();
    if !peer.is_empty() && peer.iter().all(|row| row.wrong == 0 && row.ranks == machine.len()) {
        machine.p2p.tested = Some(Pairs::from_fn(machine.len(), |a, b| (a != b).then_some(P2pTest::Right)));
        machine.origin.insert("p2p.tested".into(), "tombolo's own all-reduce, just now".into());
    }
    check
}

enum Trouble {
    Hung,
    Failed(String),
}

fn try_it() -> Result<Report, Trouble> {
    let failed = |error: &dyn std::fmt::Display| Trouble::Failed(error.to_string());
    let me = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut command = Command::new(me);
    command.args(["bench", "collective", "--json", "--bytes", BYTES, "--repetitions", "3"]).stdin(Stdio::null());
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
