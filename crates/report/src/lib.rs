//! Plain data as pages that people read: one self-contained HTML file, with drawings as inline SVG, light and dark, fit to
//! be printed. Nothing is fetched from anywhere, and there is no script.
//!
//! Nothing is computed or judged here.

#![forbid(unsafe_code)]

mod doctor;
pub mod html;
pub mod machine_svg;
mod plan;
pub mod waterfall;

pub use doctor::doctor_page;
pub use plan::{PlanView, plan_page};
