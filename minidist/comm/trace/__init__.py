"""What happened, when, and how many bytes: messages, spans, memory over time."""

from .trace import Message, OnHost, Results, Span, Trace, lane_of
