//! Receipts: what a controller gave a node, signed, so that the node can prove it later.
//!
//! A node brings back the epoch and the generation that it was given. A higher epoch than the database holds
//! proves that the database was rolled back, which stops the whole cluster for a while. So it counts only if the
//! controller itself signed it.

use std::fmt;

use ring::hmac;
use tessera_model::{ControllerId, NodeId};

/// What is signed begins with this, so that the key's signatures mean nothing else.
const DOMAIN: [u8; 20] = *b"tessera-receipt-v1\0\0";
/// Length of a receipt: generation, epoch, signature.
const LENGTH: usize = 8 + 8 + 32;

/// The key of a controller's receipts.
#[derive(Clone)]
pub struct ReceiptKey(hmac::Key);

impl fmt::Debug for ReceiptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key must not reach a log.
        f.debug_struct("ReceiptKey").finish_non_exhaustive()
    }
}

impl ReceiptKey {
    /// Length of a key in bytes.
    pub const BYTES: usize = 32;

    /// Takes a key.
    pub fn new(bytes: &[u8; Self::BYTES]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// Returns the receipt of what a controller gave a node.
    pub fn sign(
        &self,
        controller: ControllerId,
        node: NodeId,
        generation: u64,
        epoch: u64,
    ) -> Vec<u8> {
        let signature = hmac::sign(&self.0, &signed(controller, node, generation, epoch));
        let mut receipt = Vec::with_capacity(LENGTH);
        receipt.extend_from_slice(&generation.to_be_bytes());
        receipt.extend_from_slice(&epoch.to_be_bytes());
        receipt.extend_from_slice(signature.as_ref());
        receipt
    }

    /// Returns whether a receipt proves that this controller gave this node that generation and that epoch, or
    /// later ones.
    pub fn proves(
        &self,
        receipt: &[u8],
        controller: ControllerId,
        node: NodeId,
        generation: u64,
        epoch: u64,
    ) -> bool {
        let Ok(receipt) = <&[u8; LENGTH]>::try_from(receipt) else { return false };
        let (numbers, signature) = receipt.split_at(16);
        let number =
            |at: usize| numbers[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let (given_generation, given_epoch) = (number(0), number(8));
        let text = signed(controller, node, given_generation, given_epoch);
        // In constant time.
        hmac::verify(&self.0, &text, signature).is_ok()
            && generation <= given_generation
            && epoch <= given_epoch
    }
}

/// Every field has its fixed place: no two claims have the same bytes.
fn signed(controller: ControllerId, node: NodeId, generation: u64, epoch: u64) -> [u8; 68] {
    let mut text = [0; 68];
    text[..20].copy_from_slice(&DOMAIN);
    text[20..36].copy_from_slice(controller.as_uuid().as_bytes());
    text[36..52].copy_from_slice(node.as_uuid().as_bytes());
    text[52..60].copy_from_slice(&generation.to_be_bytes());
    text[60..].copy_from_slice(&epoch.to_be_bytes());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const CONTROLLER: ControllerId = ControllerId::from_uuid(Uuid::from_u128(1));
    const NODE: NodeId = NodeId::from_uuid(Uuid::from_u128(2));

    fn key(byte: u8) -> ReceiptKey {
        ReceiptKey::new(&[byte; ReceiptKey::BYTES])
    }

    #[test]
    fn a_receipt_proves_what_was_given_and_nothing_later() {
        let receipt = key(7).sign(CONTROLLER, NODE, 3, 9);
        let proves =
            |generation, epoch| key(7).proves(&receipt, CONTROLLER, NODE, generation, epoch);
        assert!(proves(3, 9) && proves(0, 0) && proves(2, 9));
        assert!(!proves(4, 9) && !proves(3, 10));
    }

    #[test]
    fn a_receipt_of_another_node_controller_or_key_proves_nothing() {
        let receipt = key(7).sign(CONTROLLER, NODE, 3, 9);
        let other = Uuid::from_u128(5);
        assert!(!key(8).proves(&receipt, CONTROLLER, NODE, 0, 0));
        assert!(!key(7).proves(&receipt, ControllerId::from_uuid(other), NODE, 0, 0));
        assert!(!key(7).proves(&receipt, CONTROLLER, NodeId::from_uuid(other), 0, 0));
        assert!(!key(7).proves(&[], CONTROLLER, NODE, 0, 0));
    }

    #[test]
    fn every_flipped_byte_is_noticed() {
        let receipt = key(7).sign(CONTROLLER, NODE, 3, 9);
        for index in 0..receipt.len() {
            let mut flipped = receipt.clone();
            flipped[index] ^= 1;
            assert!(!key(7).proves(&flipped, CONTROLLER, NODE, 0, 0), "byte {index}");
        }
    }
}
