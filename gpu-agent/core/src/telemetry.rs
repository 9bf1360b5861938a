//! What was measured of a node's GPUs, and whose it was. Pure: readings and the time come in,
//! accounts, series and files' contents come out.

pub mod energy;
pub mod job_map;
pub mod meter;
pub mod pace;
pub mod readings;
pub mod series;
pub mod tracks;
