/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>
#include <stdbool.h>

#include "wire/proof.h"

static struct wh_crypto crypto;
static uint8_t key[WH_KEY_SIZE];

/* The payloads of a HELLO and its WELCOME. */
struct talk {
	uint8_t hello[WH_HELLO_MAX], welcome[WH_HELLO_MAX];
	size_t hello_length, welcome_length;
};

static int open_it(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(key); i++)
		key[i] = (uint8_t)i;
	return wh_crypto_open(&crypto, NULL);
}

static int close_it(void **state)
{
	(void)state;
	wh_crypto_close(&crypto);
	return 0;
}

static struct talk sample(void)
{
	struct wh_hello hello = {
		.version_min = WH_WIRE_VERSION,
		.version_max = WH_WIRE_VERSION,
		.role = WH_ROLE_CONTROL,
		.epoch = 1,
		.host = "hhhhhhhhhhhhhhh",
		.name = "node7",
		.auth_length = WH_NONCE_SIZE,
	};
	struct wh_hello welcome = hello;
	struct talk talk;

	memset(hello.auth, 0x11, WH_NONCE_SIZE);
	welcome.epoch = 2;
	welcome.expected = 1;
	welcome.session = 5;
	strcpy(welcome.name, "owner");
	strcpy(welcome.socket, "wherry-0");
	memset(welcome.auth, 0x22, WH_NONCE_SIZE);
	welcome.auth_length = WH_NONCE_SIZE + WH_PROOF_SIZE;
	talk.hello_length = wh_hello_encode(talk.hello, &hello);
	talk.welcome_length = wh_hello_encode(talk.welcome, &welcome);
	return talk;
}

static int make(const struct talk *talk, struct wh_proofs *proofs)
{
	uint8_t *hello = exact_copy(talk->hello, talk->hello_length);
	uint8_t *welcome = exact_copy(talk->welcome, talk->welcome_length);
	int rc = wh_proofs_make(&crypto, key, hello, talk->hello_length, welcome,
				talk->welcome_length, proofs);

	free(hello);
	free(welcome);
	return rc;
}

/* Computed for version 5 from the formulas in docs/wire-protocol.md by another program (Python's
 * hmac). */
static void make__as_documented(void **state)
{
	static const uint8_t owner[] = {
		0x65, 0x07, 0xa3, 0x68, 0x0f, 0x79, 0x32, 0x8c, 0x21, 0x51, 0xac,
		0xd1, 0x8d, 0x14, 0x70, 0xd7, 0x5e, 0xe4, 0xd1, 0x6f, 0x69, 0x92,
		0x65, 0x27, 0xfb, 0xf4, 0x17, 0x4d, 0xa3, 0x3d, 0xce, 0x09,
	};
	static const uint8_t initiator[] = {
		0xce, 0x5f, 0x40, 0x8a, 0xff, 0x34, 0x6e, 0xa8, 0xd6, 0xcb, 0xda,
		0x7c, 0x34, 0xd5, 0xf7, 0xfc, 0x10, 0xdc, 0x05, 0x09, 0x2a, 0x5b,
		0x4d, 0xec, 0xec, 0xd4, 0x96, 0x3e, 0xc9, 0xee, 0xfc, 0x95,
	};
	static const uint8_t session[] = {
		0x4e, 0xd4, 0x98, 0x79, 0x97, 0x36, 0xc2, 0x97, 0xf7, 0x59, 0xdd,
		0xab, 0x5c, 0x2c, 0xe8, 0x59, 0x70, 0xa0, 0xd3, 0xdd, 0xb2, 0xf9,
		0x39, 0xea, 0x4e, 0x68, 0xb3, 0x55, 0x15, 0xc6, 0x5d, 0xe8,
	};
	struct talk talk = sample();
	struct wh_proofs proofs;

	(void)state;
	assert_int_equal(make(&talk, &proofs), 0);
	assert_memory_equal(proofs.owner, owner, sizeof(owner));
	assert_memory_equal(proofs.initiator, initiator, sizeof(initiator));
	assert_memory_equal(proofs.session, session, sizeof(session));
}

static bool differ(const struct wh_proofs *a, const struct wh_proofs *b)
{
	return !wh_proof_equal(&crypto, a->owner, b->owner) &&
	       !wh_proof_equal(&crypto, a->initiator, b->initiator) &&
	       !wh_proof_equal(&crypto, a->session, b->session);
}

/* Whatever one side has heard otherwise than the other has said it: versions, nonces, epochs,
 * names, roles, capabilities. */
static void make__every_bit_counts(void **state)
{
	struct talk good = sample(), talk;
	struct wh_proofs proofs, other;
	unsigned taken = 0;

	(void)state;
	assert_int_equal(make(&good, &proofs), 0);
	for (size_t bit = 0; bit < 8 * (good.hello_length + good.welcome_length - WH_PROOF_SIZE);
	     bit++) {
		talk = good;
		if (bit < 8 * good.hello_length)
			talk.hello[bit / 8] ^= (uint8_t)(1 << bit % 8);
		else
			talk.welcome[bit / 8 - good.hello_length] ^= (uint8_t)(1 << bit % 8);
		/* Much of it would not even be taken for a hello. */
		if (make(&talk, &other))
			continue;
		assert_true(differ(&proofs, &other));
		taken++;
	}
	assert_true(taken > 8 * 2 * (WH_NONCE_SIZE + 3 * 8 + 16));
	for (size_t bit = 0; bit < 8 * sizeof(key); bit++) {
		key[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_int_equal(make(&good, &other), 0);
		key[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_true(differ(&proofs, &other));
	}
	/* The place of the owner's proof itself is left out. */
	talk = good;
	memset(talk.welcome + talk.welcome_length - WH_PROOF_SIZE, 0x77, WH_PROOF_SIZE);
	assert_int_equal(make(&talk, &other), 0);
	assert_memory_equal(&proofs, &other, sizeof(proofs));
}

/* One's proof is of no use as the other's. */
static void make__no_two_alike(void **state)
{
	struct talk talk = sample();
	struct wh_proofs proofs;

	(void)state;
	assert_int_equal(make(&talk, &proofs), 0);
	assert_false(wh_proof_equal(&crypto, proofs.owner, proofs.initiator));
	assert_false(wh_proof_equal(&crypto, proofs.owner, proofs.session));
	assert_false(wh_proof_equal(&crypto, proofs.initiator, proofs.session));
	assert_true(wh_proof_equal(&crypto, proofs.owner, proofs.owner));
}

static void make__malformed(void **state)
{
	struct talk good = sample(), talk;
	struct wh_proofs proofs;

	(void)state;
	for (size_t cut = 0; cut < good.hello_length; cut++) {
		talk = good;
		talk.hello_length = cut;
		assert_int_equal(make(&talk, &proofs), -EPROTO);
	}
	for (size_t cut = 0; cut < good.welcome_length; cut++) {
		talk = good;
		talk.welcome_length = cut;
		assert_int_equal(make(&talk, &proofs), -EPROTO);
	}
	/* What we say ourselves, said back. */
	talk = good;
	memcpy(talk.welcome, good.hello, good.hello_length);
	talk.welcome_length = good.hello_length;
	assert_int_equal(make(&talk, &proofs), -EPROTO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(make__as_documented),
		cmocka_unit_test(make__every_bit_counts),
		cmocka_unit_test(make__no_two_alike),
		cmocka_unit_test(make__malformed),
	};

	return cmocka_run_group_tests(tests, open_it, close_it);
}
