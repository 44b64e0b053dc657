"""The instance against which all others are compared: nothing but the stock loader ever writes to it."""

from dcr_recipes.processes.border import Context, enter
from dcr_recipes.processes.host import build_oracle
from dcr_recipes.processes.serving import announce, wait_for_the_end
from dcr_recipes.runtime.engines import oracle_name


def main(context: Context) -> None:
    """Serve ``load_dense`` and ``dump``."""
    announce(context, build_oracle(context).handlers())
    wait_for_the_end()


if __name__ == "__main__":
    enter(oracle_name, main)
