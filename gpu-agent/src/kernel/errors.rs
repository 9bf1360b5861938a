//! Why kernel queues can't start or accept attempts.

use std::io;

use tessera_wire::endpoint::ListenError;
use tessera_wire::tls::TlsError;

/// The endpoint or the queues of one GPU cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its certificate can't be loaded or created.
    #[error("cannot load or create the endpoint's certificate")]
    Identity(#[from] TlsError),
    /// It cannot listen on any port.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A thread, timer or file cannot be created.
    #[error("cannot start the thread of a GPU's kernel queues")]
    System(#[from] io::Error),
}

/// The attempt can't join its slice's queue.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// Its token can't be created or stored.
    #[error("cannot store the attempt's token: {0}")]
    Token(#[from] io::Error),
    /// The queues of its GPU can't start.
    #[error("cannot start the kernel queues of its GPU: {0}")]
    Start(#[from] StartError),
    /// The node has more GPUs than any known machine.
    #[error(
        "the kernel queues of 16 other GPUs run already: restart the agent if GPUs were replaced"
    )]
    TooManyGpus,
    /// The thread of its GPU's queues is overloaded or has ended.
    #[error("the kernel queue accepts no orders: its thread is overloaded or has ended")]
    Busy,
}
