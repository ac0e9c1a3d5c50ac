/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine tells observers, as the wherry command reads it. */
#include "fuzz.h"

#include <errno.h>

#include "telemetry/observation.h"

/* What was read is written again as it was, if its histograms name each bucket once and in order. */
static void again(const struct wh_observation *read)
{
	struct wh_observed_writer out;
	struct wh_observation once_more;
	uint8_t *bytes;
	size_t length;

	wh_observed_begin(&out);
	for (size_t i = 0; i < read->peer_count; i++)
		wh_observed_put_peer(&out, &read->peers[i]);
	for (size_t i = 0; i < read->session_count; i++)
		wh_observed_put_session(&out, &read->sessions[i]);
	check(!wh_observed_end(&out, &read->engine, &bytes, &length));
	check(!wh_observation_parse(bytes, length, &once_more));
	check(!memcmp(&once_more.engine, &read->engine, sizeof(read->engine)));
	check(once_more.peer_count + once_more.left_out >= read->peer_count);
	for (size_t i = 0; i < once_more.peer_count; i++)
		check(!memcmp(&once_more.peers[i], &read->peers[i], sizeof(read->peers[i])));
	wh_observation_free(&once_more);
	free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct wh_observation read;
	int rc = wh_observation_parse(data, size, &read);

	if (rc) {
		check(rc == -EPROTO || rc == -ENOMEM);
		return 0;
	}
	again(&read);
	wh_observation_free(&read);
	return 0;
}
