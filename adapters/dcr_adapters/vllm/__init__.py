"""vLLM as a receiver: native loader, worker side, request gate (paper section 6, DESIGN R9-R13, R19, B7)."""
