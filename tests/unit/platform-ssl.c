/* SPDX-License-Identifier: Apache-2.0 */
/* Our declarations of OpenSSL's libssl, compared with the installed headers and library. */
#include "unit.h"

#include <errno.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <wherry/error.h>

#include "platform/ssl.h"

static void constants__as_in_the_headers(void **state)
{
	(void)state;
	assert_int_equal(WH_TLS1_3_VERSION, TLS1_3_VERSION);
	assert_int_equal(WH_SSL_CTRL_MODE, SSL_CTRL_MODE);
	assert_int_equal(WH_SSL_CTRL_SET_SESS_CACHE_MODE, SSL_CTRL_SET_SESS_CACHE_MODE);
	assert_int_equal(WH_SSL_CTRL_SET_MIN_PROTO_VERSION, SSL_CTRL_SET_MIN_PROTO_VERSION);
	assert_int_equal(WH_SSL_MODE_RELEASE_BUFFERS, SSL_MODE_RELEASE_BUFFERS);
	assert_int_equal(WH_SSL_SESS_CACHE_OFF, SSL_SESS_CACHE_OFF);
	assert_int_equal(WH_SSL_VERIFY_BOTH, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT);
	assert_int_equal(WH_SSL_FILETYPE_PEM, SSL_FILETYPE_PEM);
	assert_int_equal(WH_SSL_ERROR_SSL, SSL_ERROR_SSL);
	assert_int_equal(WH_SSL_ERROR_WANT_READ, SSL_ERROR_WANT_READ);
	assert_int_equal(WH_SSL_ERROR_WANT_WRITE, SSL_ERROR_WANT_WRITE);
	assert_int_equal(WH_SSL_ERROR_SYSCALL, SSL_ERROR_SYSCALL);
	assert_int_equal(WH_SSL_ERROR_ZERO_RETURN, SSL_ERROR_ZERO_RETURN);
	assert_int_equal(WH_SSL_KEY_UPDATE_NOT_REQUESTED, SSL_KEY_UPDATE_NOT_REQUESTED);
	assert_int_equal(WH_SSL_OP_NO_TICKET, SSL_OP_NO_TICKET);
#ifdef SSL_OP_ENABLE_KTLS
	assert_int_equal(WH_SSL_OP_ENABLE_KTLS, SSL_OP_ENABLE_KTLS);
#endif
	assert_int_equal(WH_BIO_TYPE_SOURCE_SINK, BIO_TYPE_SOURCE_SINK);
	assert_int_equal(WH_BIO_FLAGS_READ_AGAIN, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY);
	assert_int_equal(WH_BIO_CTRL_FLUSH, BIO_CTRL_FLUSH);
#ifdef BIO_CTRL_GET_KTLS_SEND
	assert_int_equal(WH_BIO_CTRL_GET_KTLS_SEND, BIO_CTRL_GET_KTLS_SEND);
	assert_int_equal(WH_BIO_CTRL_GET_KTLS_RECV, BIO_CTRL_GET_KTLS_RECV);
#endif
	assert_int_equal(WH_NID_COMMON_NAME, NID_commonName);
}

/* Each function has the type that the headers declare, except those that the headers rename. */
static void functions__as_in_the_headers(void **state)
{
	struct wh_ssl ssl;

	(void)state;
	memset(&ssl, 0, sizeof(ssl));
	ssl.SSL_read = SSL_read;
	ssl.SSL_write = SSL_write;
	ssl.SSL_new = SSL_new;
	ssl.SSL_CTX_ctrl = SSL_CTX_ctrl;
	ssl.SSL_CTX_set_ciphersuites = SSL_CTX_set_ciphersuites;
	ssl.SSL_CTX_set_verify = SSL_CTX_set_verify;
	ssl.SSL_CTX_set_default_passwd_cb = SSL_CTX_set_default_passwd_cb;
	ssl.SSL_CTX_set_default_passwd_cb_userdata = SSL_CTX_set_default_passwd_cb_userdata;
	ssl.SSL_CTX_set_psk_use_session_callback = SSL_CTX_set_psk_use_session_callback;
	ssl.SSL_CTX_set_psk_find_session_callback = SSL_CTX_set_psk_find_session_callback;
	ssl.SSL_SESSION_set1_master_key = SSL_SESSION_set1_master_key;
	ssl.SSL_export_keying_material = SSL_export_keying_material;
	ssl.SSL_set0_rbio = SSL_set0_rbio;
	ssl.SSL_key_update = SSL_key_update;
	ssl.BIO_meth_new = BIO_meth_new;
	ssl.BIO_meth_free = BIO_meth_free;
	ssl.BIO_meth_set_read = BIO_meth_set_read;
	ssl.BIO_meth_set_write = BIO_meth_set_write;
	ssl.BIO_meth_set_ctrl = BIO_meth_set_ctrl;
	ssl.BIO_new = BIO_new;
	ssl.BIO_set_flags = BIO_set_flags;
	ssl.BIO_ctrl = BIO_ctrl;
	ssl.X509_NAME_get_text_by_NID = X509_NAME_get_text_by_NID;
	ssl.X509_get_subject_name = X509_get_subject_name;
	ssl.ERR_reason_error_string = ERR_reason_error_string;
	assert_non_null(ssl.SSL_read);
}

static void open__here(void **state)
{
	struct wh_ssl ssl;

	(void)state;
	assert_int_equal(wh_ssl_open(&ssl, NULL), 0);
	assert_non_null(ssl.SSL_CTX_new);
	assert_non_null(ssl.peer_certificate);
	assert_non_null(ssl.ERR_clear_error);
	wh_ssl_close(&ssl);
	assert_null(ssl.SSL_CTX_new);
}

static void open__missing(void **state)
{
	struct wh_ssl ssl;

	(void)state;
	assert_int_equal(wh_ssl_open(&ssl, "/nowhere/libssl.so.3"), -ELIBACC);
	assert_non_null(strstr(wh_error_text(), "/nowhere/libssl.so.3"));
	assert_non_null(strstr(wh_error_text(), "libssl3"));
	/* Some other library. */
	assert_int_equal(wh_ssl_open(&ssl, "libc.so.6"), -ELIBACC);
	assert_non_null(strstr(wh_error_text(), "TLS_method"));
	assert_null(ssl.library);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(constants__as_in_the_headers),
		cmocka_unit_test(functions__as_in_the_headers),
		cmocka_unit_test(open__here),
		cmocka_unit_test(open__missing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
