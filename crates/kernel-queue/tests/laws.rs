//! Invariants for all actions of sessions in any order, with messages that arrive late or never.

#[path = "laws/harness.rs"]
mod harness;

use harness::{Harness, Op};
use proptest::prelude::*;
use tessera_kernel_queue::{GapPredictor, GrantSize, Nanos, QueueRules};

fn rules() -> impl Strategy<Value = QueueRules> {
    let grants = prop_oneof![Just(GrantSize::Kernel), Just(GrantSize::Gap)];
    let predictor =
        prop_oneof![Just(GapPredictor::Mean), Just(GapPredictor::Pairs { risk_thousandths: 300 }),];
    let switches = any::<[bool; 2]>();
    (grants, predictor, 1_u16..4, switches).prop_map(|(grants, predictor, in_flight, switches)| {
        let ([ages, recall], plain) = (switches, QueueRules::default());
        QueueRules {
            recall,
            grants,
            predictor,
            in_flight,
            ageing: plain.ageing.filter(|_| ages),
            // So long that a grant's budget is the whole gap.
            grant_max: Nanos::from_millis(400),
            ..plain
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn the_laws_hold_next_to_holders_that_repeat_themselves(
        rules in rules(),
        ops in prop::collection::vec(Op::any(), 1..400),
    ) {
        let mut harness = Harness::repeating(QueueRules { grants: GrantSize::Gap, ..rules });
        for op in ops {
            harness.apply(op);
        }
    }

    #[test]
    fn the_laws_hold(rules in rules(), ops in prop::collection::vec(Op::any(), 1..400)) {
        let mut harness = Harness::new(rules);
        for op in ops {
            harness.apply(op);
        }
    }
}
