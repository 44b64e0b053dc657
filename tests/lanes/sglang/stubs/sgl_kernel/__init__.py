"""Stands in for ``sgl_kernel``, see ``dcr_lane_absent``."""

from dcr_lane_absent import stand_in  # type: ignore[import-not-found]  # by a .pth file of the lane

stand_in(__name__)
