//! `tombolo bench collective`: the all-reduce between GPUs, alone and fused, in a CUDA graph as a decode step runs it,
//! beside NCCL's protocols on the same path. Prints as nccl-tests does.

use crate::args::Device;
use crate::child::{self, Ended};
use crate::error::{Error, failure, input};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;
use tombolo_cuda::collective::Transport;
use tombolo_cuda::collective::bench::{CALLS, NcclReport, Work, measure, measure_nccl};
use tombolo_cuda::kernels::all_reduce::Wire;
use tombolo_model::MAX_RANKS;

/// Options of `bench collective`.
#[derive(clap::Args)]
pub(crate) struct CollectiveArgs {
    /// Bytes of a row on the wire; several sizes with commas between
    #[arg(short = 'b', long, default_value = "12288", value_name = "N", value_delimiter = ',')]
    bytes: Vec<usize>,
    /// Rows of a message, each with a norm of its own; several numbers with commas between
    #[arg(long, default_value = "1", value_name = "N", value_delimiter = ',')]
    rows: Vec<usize>,
    /// Ranks [default: one per GPU]
    #[arg(long, visible_alias = "tp", value_name = "N")]
    ranks: Option<usize>,
    /// cuda, or cuda:0,1 for these GPUs, one per rank; a GPU may repeat
    #[arg(long, default_value = "cuda", value_name = "DEVICE")]
    device: Device,
    /// What carries the data [default: both]
    #[arg(long, value_enum, value_name = "WHAT")]
    transport: Option<Path>,
    /// What travels
    #[arg(long, default_value = "bf16", value_enum, value_name = "TYPE")]
    wire: WireType,
    /// Samples of each figure, of which the median is printed
    #[arg(short = 'r', long = "repetitions", default_value_t = 5, value_name = "N")]
    repetitions: usize,
    /// Measure NCCL too, with each of its protocols
    #[arg(long)]
    nccl: bool,
    /// NCCL's library [default: NCCL_LIB, else libnccl.so.2 where it is usually found]
    #[arg(long, value_name = "FILE")]
    nccl_library: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Measure NCCL with the environment as it is, print one JSON object: what this program runs itself as
    #[arg(long, hide = true)]
    nccl_child: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Path {
    /// Each other's memory
    Peer,
    /// Pinned host memory
    Host,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum WireType {
    Bf16,
    F32,
}

/// One line of the table, one object of the JSON.
#[derive(Clone, Debug, Serialize)]
struct Line {
    transport: &'static str,
    what: String,
    bytes: usize,
    ranks: usize,
    us: f64,
    wrong: usize,
    /// NCCL's best on the same path in the same run over this.
    #[serde(skip_serializing_if = "Option::is_none")]
    vs_nccl: Option<f64>,
}

#[derive(Serialize, Deserialize)]
struct ChildReport {
    version: String,
    us: f64,
    wrong: usize,
}

/// NCCL's settings that are compared: `NCCL_PROTO`, none for its own choice. LL128 is measured, never recommended: on
/// PCIe nothing promises that its 128-byte stores arrive whole.
const PROTOCOLS: [Option<&str>; 4] = [None, Some("LL"), Some("LL128"), Some("Simple")];
/// Sizes of one call.
const SIZES_MAX: usize = 32;
const ROWS_MAX: usize = 4096;
const CHILD_DEADLINE: Duration = Duration::from_secs(60);

/// Runs the command.
pub(crate) fn run(args: &CollectiveArgs) -> Result<ExitCode, Error> {
    let works = works(args)?;
    if args.nccl_child {
        let NcclReport { version, us, wrong } =
            measure_nccl(args.nccl_library.as_deref(), &works[0]).map_err(failure)?;
        let report = serde_json::to_string(&ChildReport { version, us, wrong }).map_err(failure)?;
        writeln!(std::io::stdout(), "{report}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut lines = Vec::new();
    let mut remarks = Vec::new();
    for path in args.transport.map_or_else(|| vec![Path::Peer, Path::Host], |path| vec![path]) {
        let transport = if path == Path::Peer { Transport::Peer } else { Transport::Host };
        for work in &works {
            let report = match measure(work, transport) {
                Ok(report) => report,
                // Without a named transport, one that cannot be used is a remark, not the end.
                Err(error) if args.transport.is_none() => {
                    remarks.push(format!("{}: {error}", transport.name()));
                    break;
                }
                Err(error) => return Err(failure(error)),
            };
            let first = lines.len();
            lines.extend(report.rows.iter().map(|row| line(work, transport, row.what.into(), row.us, row.wrong)));
            if args.nccl {
                add_nccl(args, work, transport, first, &mut lines, &mut remarks)?;
            }
        }
    }
    if args.json {
        print_json(&works[0], &lines, &remarks)?
    } else {
        print_table(&works[0], &lines, &remarks)?
    }
    let wrong = lines.iter().any(|l| l.wrong > 0);
    Ok(if wrong || lines.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What is measured, one entry for each size; at least one.
fn works(args: &CollectiveArgs) -> Result<Vec<Work>, Error> {
    let wire = if args.wire == WireType::Bf16 { Wire::Bf16 } else { Wire::F32 };
    let unit = 4 * wire.bytes();
    let is_size = |&bytes: &usize| bytes > 0 && bytes.is_multiple_of(unit) && bytes <= 64 << 20;
    if let Some(bytes) = args.bytes.iter().find(|bytes| !is_size(bytes)) {
        return Err(input(format!("--bytes {bytes}: a multiple of {unit} up to 64 MiB is needed")));
    }
    if let Some(rows) = args.rows.iter().find(|&&rows| !(1..=ROWS_MAX).contains(&rows)) {
        return Err(input(format!("--rows {rows} is not between 1 and {ROWS_MAX}")));
    }
    let most = args.bytes.iter().max().zip(args.rows.iter().max()).map_or(0, |(bytes, rows)| bytes * rows);
    let sizes = args.bytes.len() * args.rows.len();
    if sizes > SIZES_MAX || most > 64 << 20 {
        return Err(input(format!("{sizes} sizes, the largest of {most} bytes: {SIZES_MAX} and 64 MiB are the most")));
    }
    if let Some(ranks) = args.ranks.filter(|&ranks| ranks > MAX_RANKS) {
        return Err(input(format!("--ranks {ranks}: at most {MAX_RANKS} are possible")));
    }
    let there = tombolo_cuda::devices().map_err(failure)?.len();
    let named = match &args.device {
        Device::Cuda(devices) if !devices.is_empty() => devices.clone(),
        Device::Cpu => return Err(input("--device cpu: ranks on the processor are threads and have no transport")),
        _ => (0..args.ranks.unwrap_or(there)).collect(),
    };
    if let Some(missing) = named.iter().find(|&&d| d >= there) {
        return Err(input(format!(
            "--device cuda:{missing}: this machine has {there} GPUs, counted from 0; cuda:0,0 shares one"
        )));
    }
    let ranks = args.ranks.unwrap_or(named.len());
    if ranks != named.len() || ranks < 2 {
        return Err(input(format!("{ranks} ranks on {} GPUs: one GPU per rank, at least two ranks", named.len())));
    }
    let samples = args.repetitions.max(1);
    let of =
        |rows: usize, bytes: usize| Work { devices: named.clone(), wire, rows, width: bytes / wire.bytes(), samples };
    Ok(args
        .rows
        .iter()
        .flat_map(|&rows| args.bytes.iter().map(move |&bytes| (rows, bytes)))
        .map(|(r, b)| of(r, b))
        .collect())
}

fn line(work: &Work, transport: Transport, what: String, us: f64, wrong: usize) -> Line {
    let bytes = work.bytes();
    Line { transport: transport.name(), what, bytes, ranks: work.devices.len(), us, wrong, vs_nccl: None }
}

/// Measures NCCL's protocols and fills in how our own lines, from `first` on, compare with the best of them.
fn add_nccl(
    args: &CollectiveArgs,
    work: &Work,
    transport: Transport,
    first: usize,
    lines: &mut Vec<Line>,
    remarks: &mut Vec<String>,
) -> Result<(), Error> {
    let ours = lines.len();
    for protocol in PROTOCOLS {
        let name = protocol.unwrap_or("default");
        match nccl_child(args, work, transport, protocol) {
            Ok(report) => {
                let what = format!("nccl {} {name}", report.version);
                lines.push(line(work, transport, what, report.us, report.wrong));
            }
            Err(why) => remarks.push(format!("nccl {name}, {}: {why}", transport.name())),
        }
    }
    let right = lines[ours..].iter().filter(|l| l.wrong == 0).map(|l| l.us);
    if let Some(best) = right.min_by(f64::total_cmp) {
        lines[first..ours].iter_mut().for_each(|l| l.vs_nccl = Some(best / l.us));
    }
    Ok(())
}

/// NCCL reads its environment once a process: every setting runs in one of its own.
fn nccl_child(
    args: &CollectiveArgs,
    work: &Work,
    transport: Transport,
    protocol: Option<&str>,
) -> Result<ChildReport, String> {
    let me = std::env::current_exe().map_err(|e| e.to_string())?;
    let devices: Vec<String> = work.devices.iter().map(usize::to_string).collect();
    let mut command = Command::new(me);
    command.args(["bench", "collective", "--nccl-child", "--bytes"]);
    // A row more or less is nothing to NCCL, which adds no norm.
    command.arg(work.bytes().to_string());
    command.args(["--device", &format!("cuda:{}", devices.join(","))]);
    command.args(["--wire", if work.wire == Wire::Bf16 { "bf16" } else { "f32" }]);
    command.args(["--repetitions", &work.samples.to_string()]);
    if let Some(library) = &args.nccl_library {
        command.arg("--nccl-library").arg(library);
    }
    // Multicast is never touched; what a debugging NCCL has to say is not read here.
    command
        .env("NCCL_NVLS_ENABLE", "0")
        .env_remove("NCCL_PROTO")
        .env_remove("NCCL_P2P_DISABLE")
        .env_remove("NCCL_DEBUG");
    if let Some(protocol) = protocol {
        command.env("NCCL_PROTO", protocol);
    }
    if transport == Transport::Host {
        command.env("NCCL_P2P_DISABLE", "1");
    }
    let (status, out, complaint) = match child::run(&mut command, CHILD_DEADLINE).map_err(|e| e.to_string())? {
        Ended::Itself { status, out, complaint } => (status, out, complaint),
        Ended::Killed(mut child) => {
            let _ = child.wait();
            return Err(format!("did not end within {} s", CHILD_DEADLINE.as_secs()));
        }
    };
    if !status.success() {
        return Err(complaint.lines().last().unwrap_or("failed").to_string());
    }
    // NCCL may print lines of its own before ours.
    let last = out.lines().last().unwrap_or_default();
    serde_json::from_str(last).map_err(|e| e.to_string())
}

fn print_table(work: &Work, lines: &[Line], remarks: &[String]) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    let devices: Vec<String> = work.devices.iter().map(usize::to_string).collect();
    writeln!(out, "# {} ranks on GPUs {}", work.devices.len(), devices.join(", "))?;
    writeln!(out, "# {CALLS} calls in one CUDA graph per rank; median of {}", work.samples)?;
    let head = ("size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong", "vs nccl");
    let (a, b, c, d, e, f, g, h, i) = head;
    writeln!(
        out,
        "# {:<9} {:<24} {a:>9} {b:>9} {c:>9} {d:>6} {e:>8} {f:>7} {g:>7} {h:>6} {i:>8}",
        "transport", "what"
    )?;
    let units = ("(B)", "(elements)", "(us)", "(GB/s)", "(GB/s)");
    let (a, b, c, d, e) = units;
    writeln!(out, "# {:<9} {:<24} {a:>9} {b:>9} {:>9} {:>6} {c:>8} {d:>7} {e:>7}", "", "", "", "")?;
    for l in lines {
        let algorithm = l.bytes as f64 / l.us / 1e3;
        let bus = algorithm * 2.0 * (l.ranks - 1) as f64 / l.ranks as f64;
        let ty = if work.wire == Wire::Bf16 { "bfloat16" } else { "float" };
        let ratio = l.vs_nccl.map_or_else(|| "-".to_string(), |r| format!("{r:.1}x"));
        writeln!(
            out,
            "  {:<9} {:<24} {:>9} {:>9} {ty:>9} {:>6} {:>8.2} {algorithm:>7.2} {bus:>7.2} {:>6} {ratio:>8}",
            l.transport,
            l.what,
            l.bytes,
            l.bytes / work.wire.bytes(),
            "sum",
            l.us,
            l.wrong
        )?;
    }
    for remark in remarks {
        writeln!(out, "# {remark}")?;
    }
    Ok(())
}

fn print_json(work: &Work, lines: &[Line], remarks: &[String]) -> Result<(), Error> {
    let value = serde_json::json!({
        "what": "bench collective",
        "build_commit": env!("TOMBOLO_COMMIT"),
        "devices": work.devices,
        "calls_per_graph": CALLS,
        "samples": work.samples,
        "results": lines,
        "remarks": remarks,
    });
    writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&value).map_err(failure)?)?;
    Ok(())
}
