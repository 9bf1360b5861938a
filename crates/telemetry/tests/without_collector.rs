//! What works without any collector. One test, because a process sets up its logs once.

use std::time::Instant;

use tessera_telemetry::{context, names};

#[expect(clippy::disallowed_methods, reason = "measures the cost of a trace context")]
#[test]
fn spans_have_ids_without_a_collector() {
    let _guard = tessera_telemetry::init("telemetry-test").unwrap();

    let submit = tracing::info_span!(names::span::SUBMIT);
    let carried = context::traceparent(&submit).unwrap();
    let launch = tracing::info_span!(names::span::LAUNCH);
    context::set_parent(&launch, &carried);

    assert!(!tessera_telemetry::exporting());
    assert!(context::is_traceparent(&carried));
    assert_eq!(context::trace_id(&launch), context::trace_id(&submit));
    assert_ne!(context::traceparent(&launch).unwrap(), carried);

    let started = Instant::now();
    for _ in 0..10_000 {
        std::hint::black_box(context::new_traceparent());
    }
    let each = started.elapsed() / 10_000;
    assert!(each.as_micros() < 100, "a context without a span must be cheap, it took {each:?}");
}
