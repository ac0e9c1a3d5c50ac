/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine tells observers, as the wherry command reads it. */
#include "fuzz.h"

#include <errno.h>

#include "telemetry/observation.h"

static void write_again(const struct wh_observation *read, uint8_t **bytes, size_t *length)
{
	struct wh_observed_writer out;

	wh_observed_begin(&out);
	for (size_t i = 0; i < read->peer_count; i++)
		wh_observed_put_peer(&out, &read->peers[i]);
	for (size_t i = 0; i < read->session_count; i++)
		wh_observed_put_session(&out, &read->sessions[i]);
	check(!wh_observed_end(&out, &read->engine, bytes, length));
}

/* What was read can be written; that is read, and written, as it is. */
static void again(const struct wh_observation *read)
{
	struct wh_observation second;
	uint8_t *bytes, *more;
	size_t length, more_length;

	write_again(read, &bytes, &length);
	check(!wh_observation_parse(bytes, length, &second));
	check(second.peer_count + second.session_count + second.left_out ==
	      read->peer_count + read->session_count);
	if (!second.left_out) {
		write_again(&second, &more, &more_length);
		check(length == more_length && !memcmp(bytes, more, length));
		free(more);
	}
	wh_observation_free(&second);
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
