/* SPDX-License-Identifier: Apache-2.0 */
/* The backend driver: windows through the kernel module, gdrdrv of NVIDIA or wherry_gdr, which has
 * the same interface. */
#include "window/driver-abi.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <wherry/error.h>

#include "window/view.h"

typedef unsigned long long ull;

static int driver_fail(int error, const char *call, const char *hint)
{
	return wh_fail(error, GDRDRV_NODE ": %s: %s%s%s", call, strerror(error), *hint ? "; " : "",
		       hint);
}

/* ---- opening --------------------------------------------------------------------------------- */

static int driver_start(struct wh_windows *windows)
{
	struct gdrdrv_version version = { 0 };
	int fd, error;

	if (windows->driver_fd >= 0)
		return 0;
	fd = open(GDRDRV_NODE, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return driver_fail(errno, "open", "is the kernel module loaded (modprobe gdrdrv)?");
	if (ioctl(fd, GDRDRV_VERSION, &version)) {
		error = driver_fail(errno, "VERSION", "");
	} else if (version.minimum >> 16 != GDRDRV_API >> 16) {
		error = wh_fail(EPROTONOSUPPORT,
				GDRDRV_NODE ": the module speaks version %u of its interface, "
					    "not %u",
				version.minimum >> 16, GDRDRV_API >> 16);
	} else {
		windows->driver_fd = fd;
		windows->driver_version = version.version;
		windows->driver_v1 = false;
		return 0;
	}
	close(fd);
	return error;
}

static void driver_stop(struct wh_windows *windows)
{
	if (windows->driver_fd >= 0)
		close(windows->driver_fd);
	windows->driver_fd = -1;
}

/* ---- pinning --------------------------------------------------------------------------------- */

static const char *pin_hint(int error)
{
	switch (error) {
	case ENOMEM:
		return "the GPU's BAR1 may be full: close windows, or enable resizable BAR";
	case EDQUOT:
		return "this user has reached the module's limit of pinned memory: close windows, "
		       "or "
		       "raise "
		       "max_pinned_per_user of wherry_gdr";
	case EINVAL:
		return "is it memory that may be shared with devices (VMM: gpuDirectRDMACapable)?";
	default:
		return "";
	}
}

static int pin_v1(struct wh_windows *windows, struct wh_span *span)
{
	struct gdrdrv_pin p = { .address = span->address, .size = span->length };

	if (span->flags)
		return driver_fail(EOPNOTSUPP, "PIN", "the module is too old to force PCIe");
	if (ioctl(windows->driver_fd, GDRDRV_PIN, &p))
		return driver_fail(errno, "PIN", pin_hint(errno));
	span->driver.handle = p.handle;
	return 0;
}

static int driver_pin(struct wh_windows *windows, struct wh_span *span)
{
	struct gdrdrv_pin_v2 p = {
		.address = span->address,
		.size = span->length,
		.flags = span->flags,
	};

	if (windows->driver_v1)
		return pin_v1(windows, span);
	if (!ioctl(windows->driver_fd, GDRDRV_PIN_V2, &p)) {
		span->driver.handle = p.handle;
		return 0;
	}
	if (errno != ENOTTY)
		return driver_fail(errno, "PIN_V2", pin_hint(errno));
	windows->driver_v1 = true;
	return pin_v1(windows, span);
}

static void driver_unpin(struct wh_windows *windows, struct wh_span *span)
{
	struct gdrdrv_unpin u = { .handle = span->driver.handle };

	/* Ignore failure: the memory was freed, and its pin with it. */
	ioctl(windows->driver_fd, GDRDRV_UNPIN, &u);
}

/* A module without this request is older than persistent mappings. */
static bool driver_holds(struct wh_windows *windows)
{
	struct gdrdrv_attribute a = { .attribute = GDRDRV_ATTRIBUTE_PERSISTENT };

	return !ioctl(windows->driver_fd, GDRDRV_ATTRIBUTE, &a) && a.value;
}

/* ---- mapping --------------------------------------------------------------------------------- */

/* The module's information about a pinned range. */
static int driver_info(struct wh_windows *windows, const struct wh_span *span,
		       struct gdrdrv_info *out)
{
	struct gdrdrv_info i = { .handle = span->driver.handle };

	if (!windows->driver_v1 && !ioctl(windows->driver_fd, GDRDRV_INFO_V2, &i)) {
		*out = i;
		return 0;
	}
	i = (struct gdrdrv_info){ .handle = span->driver.handle };
	if (ioctl(windows->driver_fd, GDRDRV_INFO, &i))
		return driver_fail(errno, "INFO", "");
	/* mapped@40 and wc@44 here. */
	i.mapping_type = !i.mapping_type ? WH_MAPPING_NONE :
			 i.wc            ? WH_MAPPING_WC :
					   WH_MAPPING_CACHED;
	*out = i;
	return 0;
}

static int request_mapping_type(struct wh_windows *windows, const struct wh_span *span,
				enum wh_mapping mapping)
{
	struct gdrdrv_request r = { .handle = span->driver.handle, .type = mapping };

	if (mapping == WH_MAPPING_NONE)
		return 0;
	if (!ioctl(windows->driver_fd, GDRDRV_REQUEST_TYPE, &r))
		return 0;
	if (errno == ENOTTY && mapping == WH_MAPPING_WC) /* the only type of older modules */
		return 0;
	return driver_fail(errno == ENOTTY ? EOPNOTSUPP : errno, "REQ_MAPPING_TYPE",
			   "leave the type of mapping to the driver");
}

static int driver_map(struct wh_windows *windows, struct wh_span *span, void *at,
		      enum wh_mapping *mapping)
{
	off_t offset = (off_t)(span->driver.handle * (uint64_t)sysconf(_SC_PAGESIZE));
	struct gdrdrv_info got = { 0 };
	int error = request_mapping_type(windows, span, *mapping);

	if (error)
		return error;
	if (mmap(at, span->length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		 windows->driver_fd, offset) == MAP_FAILED)
		return wh_fail(errno, GDRDRV_NODE ": mmap of %llu bytes: %s", (ull)span->length,
			       strerror(errno));
	if (madvise(at, span->length, MADV_DONTFORK))
		return driver_fail(errno, "madvise(MADV_DONTFORK)", "");
	error = driver_info(windows, span, &got);
	if (!error)
		*mapping = (enum wh_mapping)got.mapping_type;
	return error;
}

const struct wh_window_backend wh_window_driver = {
	.name = "driver",
	.start = driver_start,
	.stop = driver_stop,
	.pin = driver_pin,
	.unpin = driver_unpin,
	.map = driver_map,
	.holds = driver_holds,
};
