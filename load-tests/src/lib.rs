//! Whole clusters of real processes, for end-to-end tests, chaos and load drivers.
//!
//! A [`cluster::Cluster`] is a controller with its PostgreSQL and agents on simulated nodes, all
//! in one temporary folder; whatever happens to the test, its end leaves no process behind.

pub mod attack;
pub mod bare;
pub mod busy;
pub mod cluster;
pub mod collector;
pub mod console;
pub mod daemon;
pub mod hardware;
pub mod http;
pub mod lean;
pub mod learning;
pub mod load;
pub mod locks;
pub mod machine;
pub mod peers;
pub mod players;
pub mod ports;
pub mod postgres;
pub mod processes;
pub mod processor;
pub mod programs;
pub mod recordings;
pub mod records;
pub mod storm;
pub mod terminal;
pub mod timeline;
pub mod wait;
