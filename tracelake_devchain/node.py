"""One HTTP request's worth of JSON-RPC, as the named node answers it: single or batch, with its faults."""

from __future__ import annotations

from typing import Any

import msgspec

from tracelake_devchain.chain import Chain
from tracelake_devchain.faults import Faults
from tracelake_devchain.find_logs import span
from tracelake_devchain.methods import NodeView, answer
from tracelake_devchain.node_error import INVALID_REQUEST, LIMIT_EXCEEDED, METHOD_NOT_FOUND, NodeError

_PARSE_ERROR = -32700
_ABOUT_BLOCKS = ("eth_getBlockByNumber", "eth_getBlockByHash", "eth_getBlockReceipts")
_encode = msgspec.json.Encoder().encode


class Request(msgspec.Struct, gc=False):
    method: str
    id: Any = None
    params: list[Any] = []
    jsonrpc: str = "2.0"


_read = msgspec.json.Decoder(list[Request] | Request).decode


def respond(chain: Chain, faults: Faults, node: str, body: bytes) -> bytes:
    try:
        asked = _read(body)
    except msgspec.ValidationError:
        return _error(None, INVALID_REQUEST, "invalid request")
    except msgspec.DecodeError:
        return _error(None, _PARSE_ERROR, "parse error")
    if isinstance(asked, Request):
        return _one(chain, faults, node, asked)
    if not asked:
        return _error(None, INVALID_REQUEST, "empty batch")
    small = faults.strike(("refuse_batch",), node, spare=True)
    if small and len(asked) > small.value:
        return _error(None, INVALID_REQUEST, f"batch too large: at most {small.value:g} calls")
    return b"[" + b",".join([_one(chain, faults, node, request) for request in asked]) + b"]"


def _one(chain: Chain, faults: Faults, node: str, request: Request) -> bytes:
    try:
        if faults:
            result = _faulty(chain, faults, node, request)
        else:
            result = answer(NodeView(chain), request.method, request.params)
    except NodeError as message:
        return _error(request.id, message.code, message.message)
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (_encode(request.id), result)


def _faulty(chain: Chain, faults: Faults, node: str, request: Request) -> bytes:
    method = request.method
    if faults.strike(("unknown_method",), node, method):
        raise NodeError(METHOD_NOT_FOUND, f"the method {method} does not exist/is not available")
    if faults.strike(("throttle_call",), node, method):
        raise NodeError(LIMIT_EXCEEDED, "rate limit exceeded")
    behind = faults.strike(("lag",), node, method)
    view = NodeView(chain, int(behind.value) if behind else 0)
    _refuse_range(faults, node, view, request)
    if method == "eth_chainId" and (error := faults.strike(("wrong_chain",), node, method)):
        return _encode(hex(int(error.value)))
    if method in _ABOUT_BLOCKS and faults.strike(("null_block",), node, method):
        return b"null"
    return faults.lie(node, method, answer(view, method, request.params))


def _refuse_range(faults: Faults, node: str, view: NodeView, request: Request) -> None:
    most = faults.strike(("refuse_range",), node, request.method, spare=True)
    if not most or request.method != "eth_getLogs" or not request.params or not isinstance(request.params[0], dict):
        return
    first, last = span(view, request.params[0])
    if last - first + 1 > most.value:
        raise NodeError(LIMIT_EXCEEDED, f"query exceeds max block range {most.value:g}")


def _error(identity: Any, code: int, message: str) -> bytes:
    return _encode({"jsonrpc": "2.0", "id": identity, "error": {"code": code, "message": message}})
