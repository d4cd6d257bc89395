//! Prints what the simulation of all-reduces predicts for every measured row, with costs that were calibrated without the
//! row's machine, and the costs that all rows together give: `cargo run -p tombolo-ceiling --release --example links`.

use tombolo_ceiling::links::{Params, calibrate, rows};

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
