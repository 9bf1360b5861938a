//! Events for the node, of which none is lost while its channel is full.

use std::collections::VecDeque;

use tessera_kernel_queue::Nanos;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::KernelEvent;

/// Pause before events are sent again that found the channel full.
const RETRY_AFTER: Nanos = Nanos::from_millis(10);

/// The way of events to the node. Those that find its channel full wait here, in their order.
///
/// Each attempt has one event and each slice one for each of its tasks, so they are few.
#[derive(Debug)]
pub struct EventOutbox {
    events: mpsc::Sender<KernelEvent>,
    waiting: VecDeque<KernelEvent>,
}

impl EventOutbox {
    /// Returns an outbox in front of a channel.
    pub const fn new(events: mpsc::Sender<KernelEvent>) -> Self {
        Self { events, waiting: VecDeque::new() }
    }

    /// Sends an event now, or as soon as the node has read earlier ones.
    pub fn send(&mut self, event: KernelEvent) {
        self.waiting.push_back(event);
        self.flush();
    }

    /// Sends what waits, as far as the channel has places.
    pub fn flush(&mut self) {
        while let Some(event) = self.waiting.pop_front() {
            match self.events.try_send(event) {
                Ok(()) => {}
                Err(TrySendError::Full(event)) => return self.waiting.push_front(event),
                // The node has ended: nobody reads any event.
                Err(TrySendError::Closed(_)) => self.waiting.clear(),
            }
        }
    }

    /// Reserves places for events that can also be made later. `None` if the channel has too few, or others wait.
    pub fn reserve(&self, places: usize) -> Option<mpsc::PermitIterator<'_, KernelEvent>> {
        // Other GPUs send events at the same time.
        self.events.try_reserve_many(places).ok().filter(|_| self.waiting.is_empty())
    }

    /// Returns when to call [`Self::flush`] again.
    pub fn next_due(&self, now: Nanos) -> Nanos {
        if self.waiting.is_empty() { Nanos::MAX } else { now.plus(RETRY_AFTER) }
    }
}

#[cfg(test)]
mod tests {
    use tessera_agent_core::kernel::AttemptTally;
    use tessera_model::AttemptId;

    use super::*;

    fn over(number: u128) -> KernelEvent {
        let attempt = AttemptId::from_uuid(uuid::Uuid::from_u128(number));
        KernelEvent::Over { attempt, tally: Box::new(AttemptTally::default()) }
    }

    fn attempts(events: &mut mpsc::Receiver<KernelEvent>) -> Vec<u128> {
        let each = std::iter::from_fn(|| events.try_recv().ok());
        each.filter_map(|event| match event {
            KernelEvent::Over { attempt, .. } => Some(attempt.as_uuid().as_u128()),
            KernelEvent::Learned { .. } => None,
        })
        .collect()
    }

    #[test]
    fn events_that_find_the_channel_full_are_sent_in_their_order_when_it_has_places() {
        let (events, mut received) = mpsc::channel(2);
        let mut outbox = EventOutbox::new(events);
        (1..=5).for_each(|number| outbox.send(over(number)));
        let now = Nanos::from_millis(7);
        assert_eq!(outbox.next_due(now), now.plus(RETRY_AFTER));
        assert!(outbox.reserve(1).is_none());

        assert_eq!(attempts(&mut received), [1, 2]);
        outbox.flush();
        assert_eq!(attempts(&mut received), [3, 4]);
        outbox.flush();

        assert_eq!(attempts(&mut received), [5]);
        assert_eq!(outbox.next_due(now), Nanos::MAX);
        assert!(outbox.reserve(1).is_some());
    }

    #[test]
    fn nothing_waits_for_a_node_that_has_ended() {
        let (events, received) = mpsc::channel(1);
        let mut outbox = EventOutbox::new(events);
        (1..=3).for_each(|number| outbox.send(over(number)));

        drop(received);
        outbox.flush();

        assert_eq!(outbox.next_due(Nanos::ZERO), Nanos::MAX);
    }
}
