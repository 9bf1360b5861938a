//! Measurements of a node's GPUs, attributed to attempts. Pure: the inputs are readings and the
//! time, and the results are accounts, series and contents of files.

pub mod energy;
pub mod job_map;
pub mod meter;
pub mod pace;
pub mod readings;
pub mod series;
pub mod tracks;
