/* SPDX-License-Identifier: Apache-2.0 */
/* Times and counts of one version, and a line about them. */
#include "weights/run/phases.h"

#include <inttypes.h>
#include <stdio.h>

void wh_phases_begin(struct wh_phases *phases, uint64_t version, int64_t heard, int64_t now)
{
	*phases = (struct wh_phases){
		.version = version, .heard = heard ? heard : now, .begun = now, .changed = now
	};
}

static void phases_change(struct wh_phases *phases, int64_t now)
{
	phases->under_way += (double)phases->running * (double)(now - phases->changed);
	if (!phases->running && phases->first)
		phases->idle += now - phases->changed;
	phases->changed = now;
}

void wh_phases_read(struct wh_phases *phases, uint64_t bytes, int64_t now)
{
	phases_change(phases, now);
	if (!phases->first)
		phases->first = now;
	phases->reads++;
	phases->bytes += bytes;
	phases->running++;
	if (phases->running > phases->most)
		phases->most = phases->running;
}

void wh_phases_landed(struct wh_phases *phases, int64_t now)
{
	phases_change(phases, now);
	phases->running--;
	phases->landed = now;
}

void wh_phases_looked(struct wh_phases *phases, int64_t took)
{
	phases->looks++;
	phases->looking += took;
}

void wh_phases_whole(struct wh_phases *phases, int64_t now)
{
	phases->whole = now;
}

static double ms(int64_t ns)
{
	return (double)ns / 1e6;
}

int wh_phases_text(const struct wh_phases *phases, char *out, size_t size)
{
	int64_t reading = phases->landed - phases->first;

	if (!phases->version || !phases->whole || !phases->landed) {
		if (size)
			*out = 0;
		return 0;
	}
	return snprintf(out, size,
			"version %" PRIu64 " took %.3f ms: %.3f ms from hearing of it until all "
			"was published, %.3f ms to the first read, %.3f ms reading (none under way "
			"for %.3f of them), %.3f ms for the last check; %" PRIu64
			" reads of %.3f MiB, %.1f under way at once, %" PRIu32 " at most; %" PRIu64
			" looks of %.3f ms\n",
			phases->version, ms(phases->whole - phases->heard),
			ms(phases->begun - phases->heard), ms(phases->first - phases->begun),
			ms(reading), ms(phases->idle), ms(phases->whole - phases->landed),
			phases->reads, (double)phases->bytes / (double)phases->reads / 1048576,
			reading > 0 ? phases->under_way / (double)reading : 1.0, phases->most,
			phases->looks,
			phases->looks ? ms(phases->looking) / (double)phases->looks : 0.0);
}
