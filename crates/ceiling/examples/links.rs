//! Prints what the simulation of all-reduces predicts for every measured row, with costs that were calibrated without the
//! row's machine, and the costs that all rows together give: `cargo run -p tombolo-ceiling --release --example links`.

use tombolo_ceiling::links::{Params, calibrate, rows};

fn main() {
    let (rows, start) = (rows::stored(), Params::stored());
    let points = calibrate::left_out(&rows, &start);
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
    println!("\ncosts with all rows:");
    for (cost, before, after) in calibrate::moved(&start, &calibrate::fit(&all, &start)) {
        println!("{:<20} stored {before:>8.3}  fitted {after:>8.3}  {}", cost.key(), start.why(cost));
    }
}
