"""SGLang as a receiver: native loader, worker side, steering (paper section 6, DESIGN R9-R13, R19, B7)."""
