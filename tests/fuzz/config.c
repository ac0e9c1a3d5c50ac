/* SPDX-License-Identifier: Apache-2.0 */
/* Knobs, "name=value" with NULs between. */
#include "fuzz.h"

#include <errno.h>

#include <wherry/engine.h>
#include <wherry/error.h>

#include "util/config.h"

#define MOST 16

/* What a setting was set to sets it to the same again. */
static void check_again(const struct wh_config *config, size_t index)
{
	const char *overrides[2] = { NULL };
	struct wh_config again;
	char text[WH_CONFIG_TEXT + 32];

	check(strnlen(config->text[index], sizeof(config->text[index])) <
	      sizeof(config->text[index]));
	snprintf(text, sizeof(text), "%s=%s", wh_config_row(index)->name, config->text[index]);
	overrides[0] = text;
	check(!wh_config_load(&again, overrides));
	check(again.number[index] == config->number[index]);
	check(!strcmp(again.text[index], config->text[index]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *overrides[MOST + 1] = { NULL };
	struct wh_config config;
	char *copy = malloc(size + 1), *at = copy;
	int rc;

	check(copy);
	if (size)
		memcpy(copy, data, size);
	copy[size] = '\0';
	for (int i = 0; i < MOST && at < copy + size; i++) {
		overrides[i] = at;
		at += strlen(at) + 1;
	}
	rc = wh_config_load(&config, overrides);
	if (rc) {
		check(rc == -EINVAL);
		check(*wh_error_text() && !strchr(wh_error_text(), '\n'));
	} else {
		check(config.number[WH_SETTING_CONNECTIONS] > 0);
		check(config.number[WH_SETTING_TIMEOUT] > 0 &&
		      config.number[WH_SETTING_BUFFER] >= 0);
		for (size_t i = 0; i < WH_SETTING_COUNT; i++)
			check_again(&config, i);
	}
	free(copy);
	return 0;
}
