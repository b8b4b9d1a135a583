"""What goes over HTTP: messages, the calls of the user API, OpenAPI, and the client of the Dispatcher."""
