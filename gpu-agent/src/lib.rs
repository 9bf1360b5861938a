//! The agent of one node: launches attempts under shepherds, and owns the layout of its GPUs.
//!
//! - [`tessera_agent_core`]: what is decided, pure: attempts, plans, journal, environment.
//! - [`messages`]: what these parts send to each other.
//! - [`node`]: carries out what the core decided; handles all inputs in one order.
//! - [`shepherd`]: the process that an attempt runs under, and that outlives the agent.
//! - [`accounts`]: the accounts that attempts run under.
//! - [`devices`]: which device nodes they may open.
//! - [`container`]: attempts in containers.
//! - [`isolation`]: which limits and protections they don't have here.
//! - [`pool`], [`adopt`]: the agent's side of the shepherds.
//! - [`nvml`], [`gpus`]: GPUs, queried through their own process.
//! - [`mps`]: slices that attempts share, one MPS daemon each.
//! - [`kernel`]: the queues for kernels of jobs on one slice.
//! - [`doctor`]: what is wrong with this machine, and what fixes it.
//! - [`inspect`]: what the driver reports of its GPUs, printed once.
//! - [`link`], [`logs`]: the controller.
//! - [`outputs`]: what attempts left, until it is removed.
//! - [`journal`], [`disk`], [`lease_page`]: what survives a crash.
//! - [`actors`]: mailboxes around node and GPUs.

pub mod accounts;
pub mod actors;
pub mod adopt;
pub mod calls;
pub mod certificate;
pub mod companion;
pub mod config;
pub mod container;
pub mod devices;
pub mod disk;
pub mod doctor;
pub mod gpus;
pub mod http;
pub mod inspect;
pub mod isolation;
pub mod join;
pub mod journal;
pub mod kernel;
pub mod kernel_log;
pub mod lease_page;
pub mod link;
pub mod logs;
pub mod messages;
pub mod mps;
pub mod node;
pub mod nvml;
pub mod outputs;
pub mod pool;
pub mod sessions;
pub mod shepherd;
pub mod sys;
pub mod telemetry;
