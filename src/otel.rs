//! Propagates traces through the store as W3C `traceparent`: a push records the current span, and attempts continue it.

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Returns the `traceparent` of the current span, or `None` if there is no valid span.
pub(crate) fn current_traceparent() -> Option<String> {
    let context = tracing::Span::current().context();
    let span = context.span();
    let span = span.span_context();
    span.is_valid().then(|| format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags().to_u8()))
}

/// Makes the span in `traceparent` the parent of `span`. Invalid values are ignored.
pub(crate) fn set_remote_parent(span: &tracing::Span, traceparent: Option<&str>) {
    if let Some(remote) = traceparent.and_then(parse_traceparent) {
        let parent = opentelemetry::Context::new().with_remote_span_context(remote);
        // Fails without an OpenTelemetry layer; then there is no trace to continue.
        let _ = span.set_parent(parent);
    }
}

fn parse_traceparent(traceparent: &str) -> Option<SpanContext> {
    let [_, trace, span, flags] = traceparent.split('-').collect::<Vec<_>>()[..] else {
        return None;
    };
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    Some(SpanContext::new(trace, span, flags, true, TraceState::NONE)).filter(SpanContext::is_valid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn traceparent_is_parsed() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let span_context = parse_traceparent(text).expect("is valid");
        assert!(span_context.is_remote() && span_context.is_sampled());
        assert_eq!(format!("00-{}-{}-01", span_context.trace_id(), span_context.span_id()), text);
        assert!(parse_traceparent("00-00000000000000000000000000000000-00f067aa0ba902b7-01").is_none());
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_rejected(text in ".*") {
            let _ = parse_traceparent(&text);
        }
    }
}
