//! Messages about nodes' certificates, on separate streams: between a controller and an agent whose
//! certificate or authority changes, and between a controller and a machine that joins.
//!
//! They are apart from the control stream, so that a renewal never waits behind reports. Calls of jobs' processes to
//! the API begin in the same way, since agents open no other streams.

use serde::{Deserialize, Serialize};
use tessera_model::AttemptId;

/// Longest request for a certificate in bytes. One with an elliptic key has about 250.
pub const REQUEST_BYTES_MAX: usize = 4 * 1024;
/// Longest token of an invitation in bytes.
pub const INVITATION_BYTES_MAX: usize = 256;

/// From an agent, or from a machine that joins, to the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CertificateRequest {
    /// A machine joins the cluster. Only on a connection of the protocol for joining.
    Join {
        /// The token of its invitation.
        token: String,
        /// The request for a certificate (PKCS #10, DER). Only its key counts.
        request: Vec<u8>,
    },
    /// The agent keeps these authorities durably, and trusts nothing else. Always first on an agent's stream.
    Trusts {
        /// SHA-256 of the authorities' text (PEM).
        authorities: [u8; 32],
        /// The authority of the newest certificate that the agent has, by its name.
        issuer: String,
    },
    /// The agent requests another certificate with a new key.
    Renew {
        /// The request for a certificate (PKCS #10, DER). Only its key counts.
        request: Vec<u8>,
    },
    /// Nothing about certificates: a process of an attempt calls the API. Only first on a stream; what follows both
    /// ways are the bytes of the process's connection.
    Call {
        /// The attempt that the process belongs to.
        attempt: AttemptId,
    },
}

/// From the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CertificateAnswer {
    /// The certificate.
    Issued {
        /// The certificate (PEM).
        certificate: String,
        /// All authorities to trust from now on (PEM), the newest first.
        authorities: String,
    },
    /// No certificate is issued.
    Refused {
        /// The reason and what would be right, for people.
        reason: String,
    },
    /// The authorities to trust from now on.
    Authorities {
        /// All of them (PEM), the newest first.
        authorities: String,
        /// Whether the agent's certificate is of an authority that ends soon: it requests another one now.
        renew: bool,
    },
}
