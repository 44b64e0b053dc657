"""Stands in for ``sgl_kernel``, see ``dcr_lane_absent``."""

from dcr_lane_absent import stand_in

stand_in(__name__)
