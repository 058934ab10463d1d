//! Traces over the store: a push takes the present span along, the attempt goes on from it. W3C `traceparent` is what travels.

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The context of the present span as a `traceparent`; nothing if there is none.
pub(crate) fn current_traceparent() -> Option<String> {
    let context = tracing::Span::current().context();
    let span = context.span();
    let at = span.span_context();
    at.is_valid().then(|| format!("00-{}-{}-{:02x}", at.trace_id(), at.span_id(), at.trace_flags().to_u8()))
}

/// Lets a span go on from what a `traceparent` says; what is none is passed over.
pub(crate) fn set_remote_parent(span: &tracing::Span, traceparent: Option<&str>) {
    if let Some(remote) = traceparent.and_then(parse_traceparent) {
        let parent = opentelemetry::Context::new().with_remote_span_context(remote);
        // Fails where no layer of OpenTelemetry listens: then there is nothing to go on.
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
        let at = parse_traceparent(text).expect("is one");
        assert!(at.is_remote() && at.is_sampled());
        assert_eq!(format!("00-{}-{}-01", at.trace_id(), at.span_id()), text);
        assert!(parse_traceparent("00-00000000000000000000000000000000-00f067aa0ba902b7-01").is_none());
    }

    proptest! {
        #[test]
        fn any_text_is_one_or_none(text in ".*") {
            let _ = parse_traceparent(&text);
        }
    }
}
