//! Prints what the simulation of all-reduces predicts for every measured row, with costs that were calibrated without the
//! row's machine, and the costs that all rows together give: `cargo run -p tombolo-ceiling --release --example links`.

use tombolo_ceiling::links::{Fabric, Params, Style, calibrate, rows, simulate};
use tombolo_collective::schedule::Schedule;

fn main() {
    let (rows, stored) = (rows::stored(), Params::stored());
    let points = calibrate::left_out(&rows, &stored);
    println!(
        "{:<42} {:<14} {:>9} {:>9} {:>10} {:>7}  section",
        "machine (left out)", "what", "bytes", "measured", "predicted", "error"
    );
    for p in &points {
        println!(
            "{:<42} {:<14} {:>9} {:>9.1} {:>10.1} {:>+6.0}%  {}",
            p.on,
            p.what,
            p.bytes,
            p.measured_us,
            p.predicted_us,
            100.0 * p.error,
            p.section
        );
    }
    let median = |name: &str, which: &dyn Fn(&calibrate::Point) -> bool| {
        let chosen: Vec<_> = points.iter().filter(|p| which(p)).collect();
        let median = calibrate::median_error(chosen.iter().copied()).unwrap_or(f64::NAN);
        println!("median error, {name}: {:.0} % of {} points", 100.0 * median, chosen.len());
    };
    median("all", &|_| true);
    median("sections 6 and 10", &|p| p.section == "6" || p.section == "10");
    median("simulated schedules", &|p| !p.nccl);
    median("NCCL's model", &|p| p.nccl);
    let all: Vec<_> = rows.iter().collect();
    let fitted = calibrate::fit(&all, &stored);
    two_cases(&fitted);
    println!("\nin sample: priors, stored, fitted to all rows");
    for row in &rows {
        for &(bytes, us) in &row.points {
            let of = |params: &Params| row.predict(bytes, params);
            let (prior, now, fit) = (of(&stored.priors()), of(&stored), of(&fitted));
            println!("{:<42} {:<14} {bytes:>9} {us:>9.1} {prior:>9.1} {now:>9.1} {fit:>9.1}", row.on, row.what.name());
        }
    }
    println!("\ncosts with all rows:");
    for (cost, prior, _) in stored.free() {
        let (before, after) = (stored.get(cost), fitted.get(cost));
        println!(
            "{:<20} prior {prior:>7.3}  stored {before:>7.3}  fitted {after:>7.3}  {}",
            cost.key(),
            stored.why(cost)
        );
    }
}

/// What schedules are chosen for: sockets that share an uplink, and switches whose posted writes collapse.
fn two_cases(params: &Params) {
    let sockets = Fabric::regular(8, 63.0, 4, 2);
    let mut collapsing = Fabric::regular(8, 63.0, 2, 2);
    collapsing.chip = (0..8).map(|gpu| Some(gpu / 4)).collect();
    collapsing.collapses = true;
    let schedules = [
        Schedule::one_shot(8),
        Schedule::staged_pull(8),
        Schedule::two_shot(8),
        Schedule::islands(&[vec![0, 1, 2, 3], vec![4, 5, 6, 7]]),
        Schedule::islands(&[vec![0, 1], vec![2, 3], vec![4, 5], vec![6, 7]]),
    ];
    for (name, fabric) in
        [("two sockets, four GPUs behind one uplink each", sockets), ("collapsing writes", collapsing)]
    {
        println!("\n{name}: us at 12 KB, 48 KB, 96 KB");
        for schedule in schedules.iter().flatten() {
            let us = |bytes| simulate(schedule, &fabric, bytes, Style::SENTINEL, params).us;
            let (a, b, c) = (us(12_288), us(49_152), us(98_304));
            println!("  {:<14} in {} pieces {a:>8.1} {b:>8.1} {c:>8.1}", schedule.kind.name(), schedule.pieces);
        }
    }
}
