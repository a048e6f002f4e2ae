"""The code of the type `host/inventory`, and a page that people can read."""

import swampstore


@swampstore.model("host/inventory")
class Inventory:
    """Makes one document of what several commands have printed."""

    # Thirty days of history, and at least one version for ever.
    inventory = swampstore.Resource(lifetime="30d")

    def collect(self, context: swampstore.MethodContext, kernel: str, disks: str) -> None:
        """Read the tables that the commands print."""
        system, release, machine = kernel.split()
        found = [_disk(line) for line in disks.splitlines()[1:]]
        context.write_resource(
            "inventory",
            "inventory",
            {"system": system, "release": release, "machine": machine, "disks": found},
        )
        context.logger.info("%d file systems", len(found))


def _disk(line: str) -> dict[str, object]:
    device, size, used, _, _, mount = line.split(maxsplit=5)
    return {
        "device": device,
        "mount": mount,
        "sizeKb": int(size),
        "used": round(int(used) / int(size), 2),
    }


@swampstore.report("host")
def host(context) -> str:  # noqa: ANN001 - a ReportContext
    """Tell what the machine is."""
    found = context.read("inventory")
    disks = "\n".join(f"- {disk['mount']}: {disk['used']:.0%} used" for disk in found["disks"])
    return f"# {found['system']} {found['release']} on {found['machine']}\n\n{disks}\n"
