//! The migration cooldown: when a running job may be migrated (again). Controllers and the simulator apply the same
//! rule to the facts that policies get about jobs.

use tessera_model::Millis;

/// The default migration cooldown: how long a job runs at least before it is moved. It is many
/// times the cost of a migration, so that migrations take a small part of a job's time.
pub const MIGRATION_COOLDOWN: Millis = Millis::from_secs(300);

/// Returns when a job whose program began then may be migrated.
pub const fn rested_at(began: Millis, cooldown: Millis) -> Millis {
    began.plus(cooldown)
}

/// Returns whether a job has run long enough to be migrated. A job whose program has not begun has not.
pub fn has_rested(began: Option<Millis>, cooldown: Millis, now: Millis) -> bool {
    began.is_some_and(|began| now >= rested_at(began, cooldown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_rests_from_the_begin_of_its_program_until_the_cooldown_is_over() {
        let (began, cooldown) = (Millis::from_secs(100), Millis::from_secs(300));
        let rested = |now| has_rested(Some(began), cooldown, now);
        assert!(!rested(Millis::new(399_999)));
        assert!(rested(Millis::from_secs(400)));
        assert!(has_rested(Some(began), Millis::ZERO, began));
    }

    #[test]
    fn a_job_whose_program_has_not_begun_is_not_migrated() {
        assert!(!has_rested(None, Millis::ZERO, Millis::from_secs(1_000)));
    }
}
