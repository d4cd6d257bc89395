//! Measured all-reduces (`data/rows.toml`), and what is predicted for each.

use super::simulate::time_us;
use super::{Fabric, Nccl, Params, Style, Wire, nccl_us};
use serde::{Deserialize, Serialize};
use tombolo_collective::schedule::{Schedule, ScheduleFault};
use tombolo_topology::pcie_gb_s;

const DATA: &str = include_str!("../../data/rows.toml");

/// What ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Push to all.
    OneShot,
    /// Staged, read by all.
    Pull,
    /// Reduce-scatter and all-gather.
    TwoShot,
    /// Within islands, across, back.
    Islands,
    /// NCCL, LL.
    NcclLl,
    /// NCCL, LL through host memory.
    NcclLlPinned,
    /// NCCL, Simple.
    NcclSimple,
}

impl What {
    /// Whether NCCL's model predicts it, not the simulation of a schedule.
    pub fn is_nccl(self) -> bool {
        matches!(self, What::NcclLl | What::NcclLlPinned | What::NcclSimple)
    }

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            What::OneShot => "one-shot push",
            What::Pull => "staged pull",
            What::TwoShot => "two-shot",
            What::Islands => "islands",
            What::NcclLl => "NCCL LL",
            What::NcclLlPinned => "NCCL LL, host",
            What::NcclSimple => "NCCL Simple",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Protocol {
    Ll16,
    Sentinel,
    #[default]
    Fenced,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Over {
    Nvlink,
    Pinned,
}

/// Rows of one machine and kernel.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The machine: what is left out together.
    pub on: String,
    /// Of the collection.
    pub section: String,
    /// What ran.
    pub what: What,
    /// Who says so.
    pub source: String,
    /// What the source does not say.
    #[serde(default)]
    pub assumed: String,
    /// Bytes, and microseconds.
    pub points: Vec<(usize, f64)>,
    #[serde(default)]
    style: Protocol,
    blocks: Option<usize>,
    #[serde(default)]
    end_barrier: bool,
    #[serde(default)]
    fused: bool,
    #[serde(default)]
    gather: bool,
    wire: Option<Over>,
    gpus: usize,
    ranks: Option<usize>,
    pcie: u8,
    #[serde(default)]
    per_switch: usize,
    #[serde(default)]
    per_chip: usize,
    #[serde(default)]
    sockets: usize,
    #[serde(default)]
    collapses: bool,
}

#[derive(Deserialize)]
struct Rows {
    row: Vec<Row>,
}

/// All of them.
pub fn stored() -> Vec<Row> {
    toml::from_str::<Rows>(DATA).expect("the data file is tested").row
}

impl Row {
    fn fabric(&self) -> Fabric {
        let port = pcie_gb_s(self.pcie, 16).unwrap_or(f64::NAN);
        let mut fabric = Fabric::regular(self.gpus, port, self.per_switch, self.sockets);
        if self.per_chip > 1 {
            fabric.chip = (0..self.gpus).map(|gpu| Some(gpu / self.per_chip)).collect();
        }
        fabric.gpu = (0..self.ranks.unwrap_or(self.gpus)).map(|rank| rank % self.gpus).collect();
        fabric.collapses = self.collapses;
        match self.wire {
            Some(Over::Nvlink) => fabric.all_over(Wire::Nvlink),
            Some(Over::Pinned) => fabric.all_over(Wire::Pinned),
            None => fabric,
        }
    }

    fn style(&self) -> Style {
        let style = match self.style {
            Protocol::Ll16 => Style::LL16,
            Protocol::Sentinel => Style::SENTINEL,
            Protocol::Fenced => Style::FENCED,
        };
        Style {
            blocks: self.blocks.unwrap_or(style.blocks),
            end_barrier: self.end_barrier,
            fused: self.fused,
            gather: self.gather,
            ..style
        }
    }

    /// What the model predicts for `bytes`, in microseconds.
    pub fn predict(&self, bytes: usize, params: &Params) -> f64 {
        self.prepared().predict(bytes, params)
    }

    /// All that does not depend on costs.
    pub fn prepared(&self) -> Prepared {
        let fabric = self.fabric();
        let ranks = fabric.ranks();
        let how = match self.what {
            What::NcclLl => How::Nccl(Nccl::Ll),
            What::NcclLlPinned => How::Nccl(Nccl::LlPinned),
            What::NcclSimple => How::Nccl(Nccl::Simple),
            What::OneShot => How::of(Schedule::one_shot(ranks)),
            What::Pull => How::of(Schedule::staged_pull(ranks)),
            What::TwoShot => How::of(Schedule::two_shot(ranks)),
            What::Islands => How::of(Schedule::islands(&fabric.islands())),
        };
        Prepared { fabric, how, style: self.style() }
    }
}

/// A row's machine and schedule, to predict with many costs.
pub struct Prepared {
    fabric: Fabric,
    how: How,
    style: Style,
}

enum How {
    Nccl(Nccl),
    Schedule(Schedule),
}

impl How {
    fn of(schedule: Result<Schedule, ScheduleFault>) -> Self {
        Self::Schedule(schedule.expect("the data file is tested"))
    }
}

impl Prepared {
    /// As [`Row::predict`].
    pub fn predict(&self, bytes: usize, params: &Params) -> f64 {
        match &self.how {
            How::Nccl(nccl) => nccl_us(&self.fabric, bytes, *nccl, params),
            How::Schedule(schedule) => time_us(schedule, &self.fabric, bytes, self.style, params),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_whole() {
        let rows = stored();
        assert!(rows.len() > 30);
        let params = Params::stored();
        for row in &rows {
            assert!(!row.on.is_empty() && !row.source.is_empty() && !row.points.is_empty());
            for &(bytes, us) in &row.points {
                let predicted = row.predict(bytes, &params);
                assert!(us > 0.0 && predicted.is_finite() && predicted > 0.0, "{}, {bytes} B", row.on);
            }
        }
    }
}
